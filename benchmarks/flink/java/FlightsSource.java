import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceOutput;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SourceSplit;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/**
 * A source that emits each flight at the time of its landing on the {@link Pace}.
 *
 * <p>Each destination is a split with its own watermark, as a Kafka partition is in Flink's Kafka source. One reader reads
 * all splits. Without {@code perDestination}, all flights share one watermark. The job takes no checkpoints.
 */
public final class FlightsSource implements Source<Flight, FlightsSource.Destination, Void> {

    /** A destination: the flights to it are in the order of their landings. */
    public record Destination(String name) implements SourceSplit {
        @Override
        public String splitId() {
            return name;
        }
    }

    private final Flights flights;
    private final Pace pace;
    private final boolean perDestination;

    FlightsSource(Flights flights, Pace pace, boolean perDestination) {
        this.flights = flights;
        this.pace = pace;
        this.perDestination = perDestination;
    }

    @Override
    public Boundedness getBoundedness() {
        return Boundedness.BOUNDED;
    }

    @Override
    public SourceReader<Flight, Destination> createReader(SourceReaderContext context) {
        return new Reader();
    }

    @Override
    public SplitEnumerator<Destination, Void> createEnumerator(SplitEnumeratorContext<Destination> context) {
        return new Enumerator(context, flights.destinations());
    }

    @Override
    public SplitEnumerator<Destination, Void> restoreEnumerator(
            SplitEnumeratorContext<Destination> context, Void checkpoint) {
        return createEnumerator(context);
    }

    @Override
    public SimpleVersionedSerializer<Destination> getSplitSerializer() {
        return new SimpleVersionedSerializer<>() {
            @Override
            public int getVersion() {
                return 1;
            }

            @Override
            public byte[] serialize(Destination split) {
                return split.name().getBytes(StandardCharsets.UTF_8);
            }

            @Override
            public Destination deserialize(int version, byte[] serialized) {
                return new Destination(new String(serialized, StandardCharsets.UTF_8));
            }
        };
    }

    @Override
    public SimpleVersionedSerializer<Void> getEnumeratorCheckpointSerializer() {
        return new SimpleVersionedSerializer<>() {
            @Override
            public int getVersion() {
                return 1;
            }

            @Override
            public byte[] serialize(Void state) {
                return new byte[0];
            }

            @Override
            public Void deserialize(int version, byte[] serialized) {
                return null;
            }
        };
    }

    /** Assigns all destinations to the only reader. */
    private record Enumerator(SplitEnumeratorContext<Destination> context, List<String> destinations)
            implements SplitEnumerator<Destination, Void> {
        @Override
        public void addReader(int reader) {
            destinations.forEach(name -> context.assignSplit(new Destination(name), reader));
            context.signalNoMoreSplits(reader);
        }

        @Override
        public void addSplitsBack(List<Destination> splits, int reader) {
            throw new IllegalStateException("The reader failed: expected a run without a restart.");
        }

        @Override
        public void start() {}

        @Override
        public void handleSplitRequest(int reader, String host) {}

        @Override
        public Void snapshotState(long checkpoint) {
            return null;
        }

        @Override
        public void close() {}
    }

    /** Emits flights as they land, until the end of the replay. */
    private final class Reader implements SourceReader<Flight, Destination> {
        private final ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();
        private final List<Destination> splits = new ArrayList<>();
        private final Map<String, SourceOutput<Flight>> outputs = new HashMap<>();
        private boolean hasAllSplits;
        private int next;
        private CompletableFuture<Void> available = new CompletableFuture<>();

        @Override
        public void start() {}

        @Override
        public void addSplits(List<Destination> added) {
            splits.addAll(added);
        }

        @Override
        public void notifyNoMoreSplits() {
            hasAllSplits = true;
            available.complete(null);
        }

        @Override
        public InputStatus pollNext(ReaderOutput<Flight> output) {
            if (!hasAllSplits) {
                return InputStatus.NOTHING_AVAILABLE;
            }
            if (outputs.isEmpty()) {
                // A destination holds the watermark from the start, so its output exists before its first flight.
                splits.forEach(split -> outputs.put(
                        split.name(), perDestination ? output.createOutputForSplit(split.splitId()) : output));
            }
            boolean isLast = next == flights.size();
            long at = isLast ? pace.end() : flights.get(next).landed();
            long waitNanos = pace.nanosUntil(at);
            if (waitNanos > 0) {
                available = new CompletableFuture<>();
                CompletableFuture<Void> waited = available;
                timer.schedule(() -> waited.complete(null), waitNanos, TimeUnit.NANOSECONDS);
                return InputStatus.NOTHING_AVAILABLE;
            }
            if (isLast) {
                return InputStatus.END_OF_INPUT;
            }
            Flight flight = flights.get(next++);
            outputs.get(flight.destination()).collect(flight, flight.departed());
            return InputStatus.MORE_AVAILABLE;
        }

        @Override
        public CompletableFuture<Void> isAvailable() {
            return available;
        }

        @Override
        public List<Destination> snapshotState(long checkpoint) {
            return splits;
        }

        @Override
        public void close() {
            timer.shutdownNow();
        }
    }
}
