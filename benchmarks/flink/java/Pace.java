import java.io.Serializable;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The clock of a replay: the time of the data passes in proportion to the time of the machine.
 *
 * @param start first time of the replay, in epoch milliseconds
 * @param end last time of the replay, in epoch milliseconds
 * @param nanosPerMilli nanoseconds of the machine per millisecond of the data
 */
record Pace(long start, long end, double nanosPerMilli) implements Serializable {
    /** Time from the first use of the clock to the start of the replay: all sources are open by then. */
    private static final long LEAD_NANOS = 1_000_000_000L;

    // Flink copies a pace to each operator. All run in this process, so they share the start.
    private static final AtomicLong BEGAN = new AtomicLong();

    private static long began() {
        BEGAN.compareAndSet(0, System.nanoTime() + LEAD_NANOS);
        return BEGAN.get();
    }

    /** Returns the time of the data. */
    long now() {
        return start + (long) ((System.nanoTime() - began()) / nanosPerMilli);
    }

    /** Returns the nanoseconds until a time of the data; zero or less if it has passed. */
    long nanosUntil(long time) {
        return began() + (long) ((time - start) * nanosPerMilli) - System.nanoTime();
    }

    /** Returns a duration of the data in milliseconds of the machine. */
    long machineMillis(long duration) {
        return Math.round(duration * nanosPerMilli / 1e6);
    }
}
