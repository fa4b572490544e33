"""What several methods are made of; a method itself is one flat file in the folder above."""
