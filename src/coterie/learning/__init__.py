"""What one client does alone: its task, local training, evaluation."""
