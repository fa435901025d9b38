import java.io.Serializable;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.windowing.ProcessAllWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;
import org.apache.flink.util.OutputTag;

/**
 * Counts flights by the hour of their take-off, under several watermark strategies at once.
 *
 * <p>Arguments: a file of flights, the start and the end of the replay (epoch milliseconds), its duration in seconds, the
 * lag and the size of the windows in milliseconds; then one argument per case, see {@link Case}.
 *
 * <p>Output: a line per closed window, with {@code window}, the number of the case, the end of the window, the time of
 * the data at which it closed, and its rows; a line per lost flight, with {@code lost} and the number of the case.
 */
public final class Replay {
    /** Interval of Flink's watermarks and of its checks for idleness. With Flink's default of 200 ms, windows close later. */
    private static final Duration WATERMARK_INTERVAL = Duration.ofMillis(5);

    /**
     * A watermark strategy.
     *
     * @param perDestination whether each destination has its own watermark
     * @param idle time of the data without flights after which a destination is idle, in milliseconds; 0 if never
     * @param wallClockLag highest distance of the watermark behind the clock, in milliseconds; 0 if there is none
     */
    record Case(int number, boolean perDestination, long idle, long wallClockLag) implements Serializable {
        /** Returns a case from an argument such as {@code destination,21600000,0} or {@code all,0,0}. */
        static Case of(int number, String argument) {
            String[] parts = argument.split(",");
            return new Case(number, parts[0].equals("destination"), Long.parseLong(parts[1]), Long.parseLong(parts[2]));
        }

        WatermarkStrategy<Flight> strategy(Pace pace, long lag) {
            WatermarkStrategy<Flight> plain = wallClockLag == 0
                    ? WatermarkStrategy.forBoundedOutOfOrderness(Duration.ofMillis(lag))
                    : WatermarkStrategy.forGenerator(context -> new WallClockLag(pace, lag, wallClockLag));
            return idle == 0 ? plain : plain.withIdleness(Duration.ofMillis(pace.machineMillis(idle)));
        }
    }

    /** Writes a line when a window closes. */
    private static final class Closing extends ProcessAllWindowFunction<Flight, String, TimeWindow> {
        private final Pace pace;
        private final int number;

        Closing(Pace pace, int number) {
            this.pace = pace;
            this.number = number;
        }

        @Override
        public void process(Context context, Iterable<Flight> flights, Collector<String> lines) {
            long rows = 0;
            for (Flight ignored : flights) {
                rows++;
            }
            lines.collect("window\t%d\t%d\t%d\t%d".formatted(number, context.window().getEnd(), pace.now(), rows));
        }
    }

    public static void main(String[] args) throws Exception {
        long start = Long.parseLong(args[1]);
        long end = Long.parseLong(args[2]);
        Pace pace = new Pace(start, end, Double.parseDouble(args[3]) * 1e9 / (end - start));
        Flights flights = Flights.read(Path.of(args[0]));
        long lag = Long.parseLong(args[4]);
        Duration size = Duration.ofMillis(Long.parseLong(args[5]));
        List<String> cases = Arrays.asList(args).subList(6, args.length);

        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(1);
        environment.getConfig().setAutoWatermarkInterval(WATERMARK_INTERVAL.toMillis());
        // Flink otherwise keeps records and watermarks for up to 100 ms, which is half an hour of the data.
        environment.setBufferTimeout(0);
        DataStream<String> lines = null;
        for (int number = 0; number < cases.size(); number++) {
            DataStream<String> ofCase = run(environment, flights, pace, Case.of(number, cases.get(number)), lag, size);
            lines = lines == null ? ofCase : lines.union(ofCase);
        }
        try (var found = lines.executeAndCollect("flights")) {
            found.forEachRemaining(System.out::println);
        }
    }

    private static DataStream<String> run(
            StreamExecutionEnvironment environment, Flights flights, Pace pace, Case one, long lag, Duration size) {
        OutputTag<Flight> late = new OutputTag<>("late", TypeInformation.of(Flight.class));
        SingleOutputStreamOperator<String> closed = environment
                .fromSource(
                        new FlightsSource(flights, pace, one.perDestination()),
                        one.strategy(pace, lag),
                        "flights",
                        TypeInformation.of(Flight.class))
                .windowAll(TumblingEventTimeWindows.of(size))
                .sideOutputLateData(late)
                .process(new Closing(pace, one.number()));
        int number = one.number();
        return closed.union(closed.getSideOutput(late).map(flight -> "lost\t" + number).returns(String.class));
    }
}
