"""When does a team pay? Workflows, sharing regimes and seeds side by side, with the controls to beat."""
