"""One TensorFlow op for each verb, its names, its order and its gradient."""
