"""What the offsets of a batch prove about the input that the batch and earlier batches contain."""
