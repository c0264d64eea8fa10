import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Stream;
import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.connector.jdbc.JdbcExactlyOnceOptions;
import org.apache.flink.connector.jdbc.JdbcExecutionOptions;
import org.apache.flink.connector.jdbc.core.datastream.sink.JdbcSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.formats.json.JsonDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.kafka.clients.consumer.OffsetResetStrategy;
import org.postgresql.xa.PGXADataSource;

/**
 * How does Flink's exactly-once JDBC sink write the topic?
 *
 * Runs until it is killed, or until its jobs have failed. Invariant: it is set up to be fast; what Postgres can convert
 * goes there as text.
 *
 * Arguments: Kafka's servers, topic, parallelism, rows a statement, ms between checkpoints, restart strategy; then for
 * each job its group, JDBC URL, table, and folder of checkpoints. A job goes on from the newest checkpoint there.
 */
public class FlinkXa {
    public static class Order {
        public long id;
        public int customer;
        public double amount;
        public String status;
        public String note;
        public String at;
    }

    public static void main(String[] arguments) throws Exception {
        List<CompletableFuture<JobExecutionResult>> jobs = new ArrayList<>();
        for (int i = 6; i < arguments.length; i += 4) {
            String[] ofJob = Arrays.copyOfRange(arguments, i, i + 4);
            jobs.add(start(arguments, ofJob[0], ofJob[1], ofJob[2], Path.of(ofJob[3])).getJobExecutionResult());
        }
        CompletableFuture.allOf(jobs.toArray(new CompletableFuture[0])).get();
    }

    private static JobClient start(
        String[] arguments, String group, String url, String table, Path checkpoints) throws Exception {
        Configuration configuration = new Configuration();
        configuration.set(RestartStrategyOptions.RESTART_STRATEGY, arguments[5]);
        configuration.set(PipelineOptions.OBJECT_REUSE, true);
        configuration.set(
            CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(Long.parseLong(arguments[4])));
        configuration.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, checkpoints.toUri().toString());
        configuration.set(
            CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
            ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
        newest(checkpoints).ifPresent(
            path -> configuration.set(StateRecoveryOptions.SAVEPOINT_PATH, path.toUri().toString()));
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(
            Integer.parseInt(arguments[2]), configuration);
        KafkaSource<Order> source = KafkaSource.<Order>builder()
            .setBootstrapServers(arguments[0])
            .setTopics(arguments[1])
            .setGroupId(group)
            .setStartingOffsets(OffsetsInitializer.committedOffsets(OffsetResetStrategy.EARLIEST))
            .setValueOnlyDeserializer(new JsonDeserializationSchema<>(Order.class))
            .setProperty("max.poll.records", arguments[3])
            .build();
        JdbcSink<Order> sink = JdbcSink.<Order>builder()
            .withQueryStatement(
                "INSERT INTO " + table + " (id, customer, amount, status, note, at) VALUES (?, ?, ?, ?, ?, ?)",
                FlinkXa::bind)
            .withExecutionOptions(JdbcExecutionOptions.builder()
                .withBatchSize(Integer.parseInt(arguments[3]))
                .withBatchIntervalMs(1000)
                // Exactly-once allows no retry.
                .withMaxRetries(0)
                .build())
            .buildExactlyOnce(
                // Postgres has one transaction a connection.
                JdbcExactlyOnceOptions.builder().withTransactionPerConnection(true).build(),
                () -> {
                    PGXADataSource target = new PGXADataSource();
                    target.setUrl(url);
                    return target;
                });
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "orders").sinkTo(sink);
        return environment.executeAsync();
    }

    /** The newest complete checkpoint: folder/job/chk-N with a file _metadata. */
    private static Optional<Path> newest(Path checkpoints) throws IOException {
        if (!Files.exists(checkpoints)) {
            return Optional.empty();
        }
        try (Stream<Path> files = Files.walk(checkpoints)) {
            return files.filter(file -> file.endsWith("_metadata"))
                .max(Comparator.comparingLong(file -> file.toFile().lastModified()))
                .map(Path::getParent);
        }
    }

    private static void bind(PreparedStatement statement, Order order) throws SQLException {
        statement.setLong(1, order.id);
        statement.setInt(2, order.customer);
        statement.setDouble(3, order.amount);
        statement.setString(4, order.status);
        statement.setString(5, order.note);
        statement.setString(6, order.at);
    }
}
