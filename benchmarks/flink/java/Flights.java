import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** The flights of a replay, in the order of their landings. */
final class Flights implements Serializable {
    private final String[] destinations;
    private final long[] departed;
    private final long[] landed;

    private Flights(String[] destinations, long[] departed, long[] landed) {
        this.destinations = destinations;
        this.departed = departed;
        this.landed = landed;
    }

    /** Returns the flights in a file of lines with a destination, a take-off and a landing, separated by tabs. */
    static Flights read(Path file) throws IOException {
        List<String[]> rows = Files.readAllLines(file).stream().map(line -> line.split("\t")).toList();
        return new Flights(
                rows.stream().map(row -> row[0]).toArray(String[]::new),
                rows.stream().mapToLong(row -> Long.parseLong(row[1])).toArray(),
                rows.stream().mapToLong(row -> Long.parseLong(row[2])).toArray());
    }

    int size() {
        return landed.length;
    }

    Flight get(int index) {
        return new Flight(destinations[index], departed[index], landed[index]);
    }

    List<String> destinations() {
        return List.of(destinations).stream().distinct().toList();
    }
}
