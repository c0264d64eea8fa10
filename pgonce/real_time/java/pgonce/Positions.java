package pgonce;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Types;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The row of one Kafka partition in {@code pgonce.positions}, as one task sees it: claimed once, then moved by flushes.
 *
 * <p>Invariant: rows and the position that says so are written by one statement, which writes nothing unless this task
 * still has the claim and the position is where this task has left it.
 */
final class Positions {
    private static final long FIRST_PAUSE_MILLIS = 20;
    private static final long LONGEST_PAUSE_MILLIS = 1000;
    // Of continuous queries: the last claim of each partition in this process. Tasks report nothing there, and when Spark
    // plans the query again, its new tasks know only what the driver knew when the run began.
    private static final Map<String, Claim> LAST = new ConcurrentHashMap<>();

    final Place place;
    private final Settings settings;
    private final Claim claim;
    private final int stage;
    private final long epoch;
    private final long sparkPartition;
    private final long attempt;
    // Of an earlier plan, in this process; null if there is none, or nothing is known of it.
    private final Claim last;
    private Long floor;
    // The claim behind which this one is proven to be right; null if it is in any case.
    private final UUID before;
    private Session session;
    private volatile boolean abandoned;

    /**
     * @param floor below which the position cannot be, unless the database went back; null if nothing is known.
     * @param isPlannedAgain whether earlier tasks of the run have read a part, and have not reported how far they came.
     */
    Positions(
            Settings settings,
            Place place,
            int stage,
            long epoch,
            long sparkPartition,
            long attempt,
            Long floor,
            boolean isPlannedAgain) {
        this.settings = settings;
        claim = new Claim(settings.runId);
        this.place = place;
        this.stage = stage;
        this.epoch = epoch;
        this.sparkPartition = sparkPartition;
        this.attempt = attempt;
        Claim earlier = isPlannedAgain ? LAST.get(key()) : null;
        last = earlier != null && earlier.runId.equals(settings.runId) ? earlier : null;
        this.floor = floor;
        // Its own, which nobody has had before, if it knows none.
        before = last != null ? last.token : isPlannedAgain ? claim.token : null;
    }

    private String key() {
        return settings.url + " " + settings.writerId + " " + place.key();
    }

    long next() {
        return claim.next;
    }

    /**
     * Say that rows of the records before this one will be stored: in continuous mode, Spark takes an epoch for done
     * before its tasks have closed it.
     */
    void promise(long next) {
        claim.promised = Math.max(claim.promised, next);
    }

    /** Make flushes and retries end soon. */
    void abandon() {
        abandoned = true;
    }

    private void discard() {
        if (session != null) {
            session.discard();
            session = null;
        }
    }

    void release() {
        if (session != null) {
            session.release();
            session = null;
        }
    }

    /** Claim the partition; the position below which its rows are stored. */
    long claim(long firstOffset) {
        if (last != null) {
            // If Spark reads again what was being written, it need not have been stored.
            long least = firstOffset <= last.next ? last.next : Math.max(last.next, last.promised);
            floor = Math.max(least, floor == null ? 0 : floor);
        }
        claim.next = persistently("claim " + place, (connection, isRetry) -> {
            try (PreparedStatement statement = connection.prepareStatement(settings.claim)) {
                int at = 0;
                statement.setLong(++at, settings.writerId);
                statement.setString(++at, settings.runId);
                statement.setString(++at, place.topic);
                statement.setInt(++at, place.partition);
                statement.setLong(++at, firstOffset);
                statement.setObject(++at, claim.token);
                statement.setInt(++at, stage);
                statement.setLong(++at, epoch);
                statement.setLong(++at, sparkPartition);
                statement.setLong(++at, attempt);
                statement.setObject(++at, floor, Types.BIGINT);
                statement.setObject(++at, before);
                try (ResultSet found = statement.executeQuery()) {
                    if (found.next()) {
                        return found.getLong(1);
                    }
                }
            }
            Found found = look(connection);
            if (found.isDisputed()) {
                dispute(connection, firstOffset);
            }
            throw found.refusal(true, firstOffset);
        });
        if (!settings.reports) {
            LAST.put(key(), claim);
        }
        return claim.next;
    }

    void flush(Rows.Flush rows) {
        long expected = claim.next;
        long after = rows.last + 1;
        claim.next = persistently("write rows of " + place, (connection, isRetry) -> {
            PreparedStatement statement = session.flush();
            int at = 0;
            for (String column : rows.columns) {
                statement.setString(++at, column);
            }
            statement.setLong(++at, after);
            statement.setInt(++at, rows.count);
            statement.setLong(++at, settings.writerId);
            statement.setString(++at, place.topic);
            statement.setInt(++at, place.partition);
            statement.setObject(++at, claim.token);
            statement.setLong(++at, expected);
            statement.setLong(++at, rows.first);
            try (ResultSet found = statement.executeQuery()) {
                if (found.next()) {
                    return after;
                }
            }
            Found found = look(connection);
            // The answer to an earlier try was lost, and it was committed: only this task has this claim.
            if (isRetry && found.isOurs && found.next >= after) {
                return after;
            }
            throw found.refusal(false, rows.first);
        });
    }

    private interface Work {
        long run(Connection connection, boolean isRetry) throws SQLException;
    }

    private long persistently(String what, Work work) {
        long deadline = 0;
        long pause = FIRST_PAUSE_MILLIS;
        boolean isRetry = false;
        while (true) {
            try {
                if (session == null) {
                    session = Session.borrow(settings);
                }
                return work.run(session.connection, isRetry);
            } catch (SQLException e) {
                discard();
                isRetry = true;
                long now = System.nanoTime();
                if (deadline == 0) {
                    deadline = now + (long) (settings.retrySeconds * 1e9);
                }
                if (abandoned || !settings.passes(e.getSQLState()) || now > deadline) {
                    throw Refusal.ofPostgres(settings, what, e, claim.next);
                }
                pause(pause);
                pause = Math.min(pause * 2, LONGEST_PAUSE_MILLIS);
            } catch (RuntimeException | Error e) {
                // The session may stand in the middle of an answer.
                discard();
                throw e;
            }
        }
    }

    private static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted", e);
        }
    }

    /** Leave a mark that rows from this record on may be missing, so that no run goes on over them. */
    void dispute(long from) {
        persistently("mark " + place, (connection, isRetry) -> dispute(connection, from));
    }

    private long dispute(Connection connection, long from) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(settings.dispute)) {
            statement.setLong(1, from);
            statement.setLong(2, settings.writerId);
            statement.setString(3, settings.runId);
            statement.setString(4, place.topic);
            statement.setInt(5, place.partition);
            return statement.executeUpdate();
        }
    }

    private Found look(Connection connection) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(settings.look)) {
            statement.setObject(1, claim.token);
            statement.setString(2, settings.runId);
            statement.setString(3, place.topic);
            statement.setInt(4, place.partition);
            statement.setLong(5, settings.writerId);
            try (ResultSet found = statement.executeQuery()) {
                return found.next()
                        ? new Found(
                                found.getBoolean(1),
                                found.getBoolean(2),
                                found.getLong(3),
                                found.getLong(4),
                                found.getLong(5) != sparkPartition && found.getInt(6) == stage,
                                found.getInt(6) < stage)
                        : new Found(false, false, 0, -1, false, false);
            }
        }
    }

    /** What the ledger has, when it has refused. */
    private final class Found {
        final boolean isOwner;
        final boolean isOurs;
        final long next;
        final long claimedEpoch;
        final boolean isOfAnother;
        final boolean isOfEarlierStage;

        Found(
                boolean isOwner,
                boolean isOurs,
                long next,
                long claimedEpoch,
                boolean isOfAnother,
                boolean isOfEarlierStage) {
            this.isOwner = isOwner;
            this.isOurs = isOurs;
            this.next = next;
            this.claimedEpoch = claimedEpoch;
            this.isOfAnother = isOfAnother;
            this.isOfEarlierStage = isOfEarlierStage;
        }

        /** Whether another task of this batch has rows of this partition, so that neither brings all of them in order. */
        boolean isDisputed() {
            return isOwner && claimedEpoch == epoch && isOfAnother;
        }

        IllegalStateException refusal(boolean atClaim, long first) {
            String nothing = "Nothing was written now; all rows below record " + next + " are there.";
            if (!isOwner) {
                return Refusal.of(
                        "FENCED",
                        "Another run of this query, or a query in its place, has taken over " + settings.table + ".",
                        nothing,
                        "Leave this one stopped. If it is the one that should run, start it again.");
            }
            long least = atClaim ? (floor == null ? 0 : floor) : claim.next;
            if (next < least) {
                return Refusal.of(
                        "POSITION_WENT_BACK",
                        "The stored position of " + place + " is " + next + ", but it was " + least
                                + " before: the database has lost what was committed since, as after a restore or a"
                                + " failover; or Spark has planned the query again while these rows were being written.",
                        nothing,
                        "Start the query again: it goes on at the stored positions.");
            }
            if (atClaim && isDisputed()) {
                return shared();
            }
            if (atClaim && before != null && isOfEarlierStage && next < first) {
                return Refusal.of(
                        "POSITION_WENT_BACK",
                        "The stored position of " + place + " is " + next + ", and the first row that came is of record "
                                + first + ". Spark has planned the query again, as when a topic gets a partition, so this"
                                + " executor does not know whether the records between have no rows, or whether the"
                                + " database has lost them, as in a failover.",
                        nothing,
                        "Start the query again: it goes on at the stored positions.");
            }
            // The driver may have moved it meanwhile, past records that have no rows.
            if (!atClaim && isOurs && next <= first) {
                return Refusal.of(
                        "TARGET_CHANGED",
                        settings.table + " is not the table any more with which this run began: it was renamed, dropped"
                                + " and created again, exchanged for another, or made unlogged, as a whole or a"
                                + " partition; it got a rule, a column got another type, or a foreign table became a"
                                + " partition.",
                        nothing,
                        "If that was meant, start the query again; that says if the table cannot be used. Otherwise give"
                                + " the table its name back.");
            }
            return Refusal.of(
                    "FENCED",
                    "A later attempt of this task has taken over " + place + "; or the database has lost that this one"
                            + " had it, as in a failover.",
                    nothing,
                    "Nothing has to be done, if the query runs. Otherwise start it again: it goes on at the stored"
                            + " positions.");
        }

        private IllegalStateException shared() {
            return Refusal.of(
                    "PARTITION_MIXED",
                    "Two tasks of one batch have rows of " + place + ". Rows of a partition must come in one task.",
                    "The rows of this task were not written, and rows of the other one were: some records between may be"
                            + " missing, so the query is not started again by itself.",
                    "Take everything out of the query that moves rows between tasks, and see `pgonce explain"
                            + " PARTITION_MIXED`.");
        }
    }

    /** A claim that was made in this process: of which run, how far it has stored, and how far it will have. */
    private static final class Claim {
        final String runId;
        final UUID token = UUID.randomUUID();
        volatile long next;
        volatile long promised;

        Claim(String runId) {
            this.runId = runId;
        }
    }
}
