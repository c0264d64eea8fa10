package pgonce;

import java.sql.Connection;
import java.sql.Driver;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * A connection to Postgres, which tasks borrow one after the other: a first connection takes far longer than a flush.
 *
 * <p>Invariant: a connection on which something failed is not used again.
 */
final class Session {
    private static final int MOST_KEPT = 64;
    private static final long IDLE_NANOS = 300_000_000_000L;
    private static final long LOOK_MILLIS = 60_000;
    private static final Map<String, Deque<Session>> KEPT = new ConcurrentHashMap<>();

    static {
        // No task borrows those of a query that has stopped.
        Thread closing = new Thread(Session::closeIdle, "pgonce closes idle sessions");
        closing.setDaemon(true);
        closing.start();
    }

    final Connection connection;
    private final Settings settings;
    private PreparedStatement flush;
    private long releasedAt;

    private Session(Connection connection, Settings settings) {
        this.connection = connection;
        this.settings = settings;
    }

    static Session borrow(Settings settings) throws SQLException {
        Deque<Session> kept = kept(settings);
        while (true) {
            Session found;
            synchronized (kept) {
                found = kept.poll();
            }
            if (found == null) {
                return new Session(connect(settings), settings);
            }
            if (found.settings.runId.equals(settings.runId) && !found.isIdle()) {
                return found;
            }
            // It was made for an older run, whose settings may have been others; or is not needed any more.
            found.discard();
        }
    }

    private boolean isIdle() {
        return System.nanoTime() - releasedAt >= IDLE_NANOS;
    }

    private static void closeIdle() {
        while (true) {
            try {
                Thread.sleep(LOOK_MILLIS);
            } catch (InterruptedException e) {
                return;
            }
            List<Session> idle = new ArrayList<>();
            for (Deque<Session> kept : KEPT.values()) {
                synchronized (kept) {
                    kept.removeIf(one -> one.isIdle() && idle.add(one));
                }
            }
            idle.forEach(Session::discard);
        }
    }

    private static Deque<Session> kept(Settings settings) {
        return KEPT.computeIfAbsent(settings.url + " " + settings.writerId, writer -> new ArrayDeque<>());
    }

    private static Connection connect(Settings settings) throws SQLException {
        Connection made;
        try {
            // DriverManager knows no driver that Spark has loaded for the session alone.
            ClassLoader loader = Thread.currentThread().getContextClassLoader();
            Driver driver = (Driver) Class.forName("org.postgresql.Driver", true, loader)
                    .getDeclaredConstructor()
                    .newInstance();
            made = driver.connect(settings.url, settings.properties);
        } catch (ReflectiveOperationException | LinkageError e) {
            throw Refusal.of(
                    "NOT_INSTALLED",
                    "Postgres's JDBC driver is not on the class path of this executor.",
                    "Nothing was written.",
                    "Add it to the application: spark.jars.packages=org.postgresql:postgresql:42.7.8, or spark.jars with"
                            + " its path.");
        }
        // The JDBC driver sets the JVM's zone, over what the role has, and defaults and triggers may depend on it.
        StringBuilder first = new StringBuilder("SELECT pg_catalog.current_setting('synchronous_commit')");
        for (Map.Entry<String, String> one : settings.session.entrySet()) {
            first.append(", pg_catalog.set_config('").append(one.getKey()).append("', '");
            first.append(one.getValue().replace("'", "''")).append("', false)");
        }
        try (Statement statement = made.createStatement();
                ResultSet found = statement.executeQuery(first.toString())) {
            found.next();
            if (found.getString(1).equals("off")) {
                throw Refusal.of(
                        "SYNCHRONOUS_COMMIT_OFF",
                        "synchronous_commit is off for this role or database, so Postgres may lose what it has"
                                + " answered.",
                        "Nothing was written.",
                        "Set it to on, or to local, for this role: ALTER ROLE <role> SET synchronous_commit = on.");
            }
        } catch (SQLException | RuntimeException e) {
            made.close();
            throw e;
        }
        return made;
    }

    PreparedStatement flush() throws SQLException {
        if (flush == null) {
            flush = connection.prepareStatement(settings.flush);
        }
        return flush;
    }

    void release() {
        releasedAt = System.nanoTime();
        Deque<Session> kept = kept(settings);
        synchronized (kept) {
            if (kept.size() < MOST_KEPT) {
                kept.push(this);
                return;
            }
        }
        discard();
    }

    void discard() {
        try {
            connection.close();
        } catch (SQLException e) {
            // It is of no use any more.
        }
    }
}
