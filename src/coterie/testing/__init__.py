"""What checks a method: the contract, and a run split over two processes."""
