"""What can roles use beside words? Search and programs; when they are used, workflows say."""
