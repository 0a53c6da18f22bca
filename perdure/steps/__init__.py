"""What one step of an agent does, without a word of Temporal."""
