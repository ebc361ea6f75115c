"""Metrics in the files that a job writes for TensorBoard, Weights & Biases and spreadsheets."""
