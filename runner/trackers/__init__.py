"""Where the metrics of a run can be sent: TensorBoard's files, Weights & Biases, Trackio, MLflow. Knows no run."""
