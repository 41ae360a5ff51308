"""What people look at: where the time goes, plots, embeddings and scalars for TensorBoard."""
