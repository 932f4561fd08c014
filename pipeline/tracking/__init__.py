"""What does MLflow learn of a run? Measures come from the metrics, and runs start without MLflow."""
