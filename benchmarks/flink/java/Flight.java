/** A flight. Times are epoch milliseconds. */
public record Flight(String destination, long departed, long landed) {}
