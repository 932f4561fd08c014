"""Who samples tokens? One small protocol and several back ends; what is asked of them, workflows say."""
