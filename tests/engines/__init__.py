"""What engines answer and do, reduced to what can be compared: names, types, statuses and their order."""
