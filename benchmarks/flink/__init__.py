"""Apache Flink and the coordinator on the same flights, on the same clock."""
