"""A personalised component and communication-efficient gradients (Zhao et al.)."""
