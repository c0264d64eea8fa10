package pgonce;

import java.io.IOException;
import java.io.ObjectOutputStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.ForeachWriter;
import org.apache.spark.sql.Row;
import org.apache.spark.util.CollectionAccumulator;

/**
 * Writes the rows of one Kafka partition as they come, with their position, in Spark's real-time and continuous modes.
 *
 * <p>Runs in a task: Spark opens it for each batch (real time) or epoch (continuous), and closes it at the end. Its
 * columns are topic, partition and offset, and then those of the table. Invariant: when {@code close(null)} has
 * returned, every row of the batch is committed. In continuous mode Spark takes an epoch for done before it closes the
 * writer. So {@code close} does not wait there: it remembers which rows will be stored, and the task goes on.
 */
public final class RealTimeWriter extends ForeachWriter<Row> {
    private static final long serialVersionUID = 1L;

    private final Settings settings;
    // What tasks have reached: they add to it, and Spark brings it to the driver before the next batch begins.
    private final CollectionAccumulator<String> reached;
    // How far each partition was stored when this object left the driver. A database that has less went back.
    private final HashMap<String, Long> floors = new HashMap<>();
    // From where Spark reads each partition on. This may be less: an attempt in place of one that failed has only what is
    // left of the batch's time, and may end before it has come to the position of the one before.
    private final HashMap<String, Long> readFrom = new HashMap<>();

    private transient long epoch;
    private transient Long firstEpoch;
    private transient long sparkPartition;
    // In continuous mode the same in all epochs. Within one plan of Spark's, no other task of the partition follows this
    // one, so one claim is enough, and a second task that claims the partition is found out in any epoch.
    private transient PartitionWriter writer;

    /**
     * @param settings what {@link Settings} reads.
     * @param reached by which tasks report.
     * @param positions where each partition stands, and from where it is read: topic, partition and both offsets, with
     *     spaces between.
     */
    public RealTimeWriter(
            Map<String, Object> settings, CollectionAccumulator<String> reached, List<String> positions) {
        this.settings = new Settings(settings);
        this.reached = reached;
        positions.forEach(this::learn);
    }

    @Override
    public boolean open(long partitionId, long epochId) {
        sparkPartition = partitionId;
        epoch = epochId;
        if (firstEpoch == null) {
            firstEpoch = epochId;
        }
        return true;
    }

    @Override
    public void process(Row row) {
        if (row.get(0) == null || row.get(1) == null || row.get(2) == null) {
            throw Refusal.of(
                    "POSITION_COLUMNS",
                    "A row has no complete position in Kafka.",
                    "It was not written.",
                    "Select the columns topic, partition and offset as the Kafka source gives them, unchanged.");
        }
        String topic = (String) row.get(0);
        int partition = ((Number) row.get(1)).intValue();
        long offset = ((Number) row.get(2)).longValue();
        if (writer == null) {
            writer = begun(new Place(topic, partition), offset);
        }
        writer.add(topic, partition, offset, row);
    }

    private PartitionWriter begun(Place place, long offset) {
        TaskContext task = TaskContext.get();
        Positions positions = new Positions(
                settings,
                place,
                task.stageId(),
                settings.reports ? epoch : firstEpoch,
                sparkPartition,
                task.taskAttemptId(),
                floors.get(place.key()),
                // A run begins with a new checkpoint, so its first plan begins with epoch 0. If that was not
                // committed, the next plan reads from where the run began.
                !settings.reports && firstEpoch > 0);
        positions.claim(offset);
        PartitionWriter begun =
                new PartitionWriter(settings, positions, readFrom.getOrDefault(place.key(), 0L));
        if (!settings.reports) {
            // No call follows the last close of a task.
            task.addTaskCompletionListener(ended -> begun.close(false));
        }
        return begun;
    }

    @Override
    public void close(Throwable error) {
        if (writer == null) {
            return;
        }
        if (error == null && !settings.reports) {
            writer.endEpoch();
            return;
        }
        PartitionWriter closing = writer;
        writer = null;
        long position = closing.close(error == null);
        String key = closing.place.key();
        floors.put(key, position);
        if (error == null) {
            readFrom.put(key, closing.readUpTo());
        }
        // Spark forgets what a task has added that failed.
        if (settings.reports) {
            reached.add(key + " " + position + " " + closing.readUpTo());
        }
    }

    /** On the driver: how far each partition is known to be stored, in the form of {@code positions}. */
    public List<String> known() {
        synchronized (floors) {
            reached.value().forEach(this::learn);
            List<String> known = new ArrayList<>();
            floors.forEach((key, position) -> known.add(key + " " + position));
            return known;
        }
    }

    private void learn(String said) {
        int second = said.lastIndexOf(' ');
        int first = said.lastIndexOf(' ', second - 1);
        String key = said.substring(0, first);
        floors.merge(key, Long.valueOf(said.substring(first + 1, second)), Math::max);
        readFrom.merge(key, Long.valueOf(said.substring(second + 1)), Math::max);
    }

    // Spark serializes the driver's object for each batch, when all tasks of the one before have reported.
    private void writeObject(ObjectOutputStream out) throws IOException {
        synchronized (floors) {
            known();
            reached.reset();
            out.defaultWriteObject();
        }
    }

    /** What Spark shows of it, in the events of its progress among others: nothing of the connection. */
    @Override
    public String toString() {
        return "pgonce (" + settings.table + ")";
    }
}
