"""What does a person type, and what is printed? One module for each verb; what a verb does lies below."""
