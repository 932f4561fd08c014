"""Who plays episodes for a rollout? An actor that keeps a workflow warm; what is played, workflows say."""
