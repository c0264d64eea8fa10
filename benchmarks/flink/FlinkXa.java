import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.time.Duration;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.connector.jdbc.JdbcExactlyOnceOptions;
import org.apache.flink.connector.jdbc.JdbcExecutionOptions;
import org.apache.flink.connector.jdbc.core.datastream.sink.JdbcSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.formats.json.JsonDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.postgresql.xa.PGXADataSource;

/**
 * How does Flink's exactly-once JDBC sink write the topic?
 *
 * Runs until it is killed, or until a task fails: a restart of its own would write rows twice. Invariant: it is set up
 * to be fast; what Postgres can convert goes there as text.
 *
 * Arguments: Kafka's servers, topic, group, JDBC URL, table, parallelism, rows a statement, ms between checkpoints.
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
        Configuration configuration = new Configuration();
        configuration.set(RestartStrategyOptions.RESTART_STRATEGY, "none");
        configuration.set(PipelineOptions.OBJECT_REUSE, true);
        configuration.set(
            CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(Long.parseLong(arguments[7])));
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(
            Integer.parseInt(arguments[5]), configuration);
        KafkaSource<Order> source = KafkaSource.<Order>builder()
            .setBootstrapServers(arguments[0])
            .setTopics(arguments[1])
            .setGroupId(arguments[2])
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setValueOnlyDeserializer(new JsonDeserializationSchema<>(Order.class))
            .setProperty("max.poll.records", arguments[6])
            .build();
        String url = arguments[3];
        JdbcSink<Order> sink = JdbcSink.<Order>builder()
            .withQueryStatement(
                "INSERT INTO " + arguments[4] + " (id, customer, amount, status, note, at) VALUES (?, ?, ?, ?, ?, ?)",
                FlinkXa::bind)
            .withExecutionOptions(JdbcExecutionOptions.builder()
                .withBatchSize(Integer.parseInt(arguments[6]))
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
        environment.execute();
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
