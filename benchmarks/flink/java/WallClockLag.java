import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.common.eventtime.WatermarkGenerator;
import org.apache.flink.api.common.eventtime.WatermarkOutput;

/**
 * A lag behind the highest event time, and a lag behind the clock: the higher of the two watermarks applies.
 *
 * <p>It is Tidegate's policy {@code limiting_timestamp_and_wall_clock_lag}. Flink has no such generator of its own.
 */
final class WallClockLag implements WatermarkGenerator<Flight> {
    private final Pace pace;
    private final long lag;
    private final long wallClockLag;
    private long highest = Long.MIN_VALUE;

    WallClockLag(Pace pace, long lag, long wallClockLag) {
        this.pace = pace;
        this.lag = lag;
        this.wallClockLag = wallClockLag;
    }

    @Override
    public void onEvent(Flight flight, long departed, WatermarkOutput output) {
        highest = Math.max(highest, departed - lag);
    }

    @Override
    public void onPeriodicEmit(WatermarkOutput output) {
        // In Flink, a watermark t asserts that no event at or before t is expected.
        output.emitWatermark(new Watermark(Math.max(highest, pace.now() - wallClockLag) - 1));
    }
}
