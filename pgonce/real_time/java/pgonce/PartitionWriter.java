package pgonce;

import java.util.concurrent.locks.LockSupport;
import org.apache.spark.sql.Row;

/**
 * Brings the rows of one Kafka partition into Postgres, in the order of their offsets, while the task goes on reading.
 *
 * <p>The task's thread adds rows, and one thread of its own flushes them. Invariant: at most one flush is under way, and
 * each begins where the one before it ended.
 */
final class PartitionWriter {
    // Rows of one fetch come within this time, and go into one flush.
    private static final long TOGETHER_NANOS = 200_000;
    // From the end of a flush to the next one, so that a busy partition makes fewer commits.
    private static final long APART_NANOS = 1_000_000;
    private static final int MOST_ROWS = 20_000;
    private static final long MOST_CHARACTERS = 8L << 20;

    final Place place;
    private final Settings settings;
    private final Positions positions;
    private long readFrom;
    private final Rows rows;
    private final Object changed = new Object();
    private final Thread thread;
    private final long stored;
    private long flushedAt;
    private long lastOffset = -1;
    private boolean closing;
    private boolean abandoned;
    private RuntimeException failure;

    /** @param positions of a partition that was claimed: below them its rows are stored. */
    PartitionWriter(Settings settings, Positions positions, long readFrom) {
        this.settings = settings;
        this.positions = positions;
        this.readFrom = readFrom;
        place = positions.place;
        rows = new Rows(settings.columns, settings.oneRowARecord);
        stored = positions.next();
        flushedAt = System.nanoTime();
        thread = new Thread(this::flushAll, "pgonce writes " + place);
        thread.setDaemon(true);
        thread.start();
    }

    void add(String topic, int partition, long offset, Row row) {
        if (partition != place.partition || !topic.equals(place.topic)) {
            throw mixed(Long.MAX_VALUE, "A task has rows of " + place + " and of partition " + partition + " of topic " + topic + ".");
        }
        if (offset < lastOffset || (offset == lastOffset && settings.oneRowARecord)) {
            throw mixed(offset, "A row of record " + offset + " of " + place + " came after one of " + lastOffset + ".");
        }
        lastOffset = offset;
        if (offset < readFrom) {
            throw Refusal.of(
                    "RECREATED",
                    "Record " + offset + " of " + place + " came, although this run has read past record " + readFrom
                            + ": the topic was deleted and created again, or the position columns are not Kafka's.",
                    "It was not written.",
                    "If the topic is another one now, start with a new checkpoint location and independent, and retire"
                            + " this query: pgonce retire.");
        }
        if (offset < stored) {
            // An earlier attempt of this task has stored it.
            return;
        }
        synchronized (changed) {
            while (failure == null && (rows.count() >= MOST_ROWS || rows.characters() >= MOST_CHARACTERS) && rows.whole() > 0) {
                await();
            }
            refuseFailed();
            rows.add(offset, row);
            if (rows.whole() > 0) {
                changed.notifyAll();
            }
        }
    }

    /** Go on with the next epoch, while rows of this one are still being written. */
    void endEpoch() {
        positions.promise(readUpTo());
        readFrom = Math.max(readFrom, readUpTo());
        lastOffset = -1;
        synchronized (changed) {
            refuseFailed();
            rows.allAreWhole();
            changed.notifyAll();
        }
    }

    /**
     * End, and wait for the last flush.
     *
     * @param all whether the rows that wait are to be flushed; false if the task has failed, and will be run again.
     * @return the partition's position.
     */
    long close(boolean all) {
        boolean interrupted = end(all);
        positions.release();
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        if (all) {
            synchronized (changed) {
                refuseFailed();
                if (abandoned) {
                    throw new IllegalStateException("The task was interrupted before its last rows were written.");
                }
            }
        }
        return positions.next();
    }

    /** Whether the task was interrupted, by Spark that kills it: then what waits need not be written. */
    private boolean end(boolean all) {
        synchronized (changed) {
            closing = true;
            abandoned = !all;
            rows.allAreWhole();
            changed.notifyAll();
        }
        boolean interrupted = false;
        while (thread.isAlive()) {
            try {
                thread.join();
            } catch (InterruptedException e) {
                interrupted = true;
                positions.abandon();
                synchronized (changed) {
                    abandoned = true;
                    changed.notifyAll();
                }
            }
        }
        return interrupted;
    }

    /** The record behind the last one that came, also if it was stored before. */
    long readUpTo() {
        return lastOffset + 1;
    }

    private void flushAll() {
        try {
            for (Rows.Flush next = next(); next != null; next = next()) {
                positions.flush(next);
                flushedAt = System.nanoTime();
            }
        } catch (RuntimeException | Error e) {
            synchronized (changed) {
                failure = e instanceof RuntimeException ? (RuntimeException) e : new RuntimeException(e);
                changed.notifyAll();
            }
        }
    }

    private Rows.Flush next() {
        synchronized (changed) {
            while (rows.whole() == 0 && !closing) {
                await();
            }
            if (closing) {
                return taken();
            }
        }
        LockSupport.parkNanos(Math.max(TOGETHER_NANOS, flushedAt + APART_NANOS - System.nanoTime()));
        synchronized (changed) {
            return taken();
        }
    }

    private Rows.Flush taken() {
        if (abandoned || rows.whole() == 0) {
            return null;
        }
        Rows.Flush taken = rows.take();
        changed.notifyAll();
        return taken;
    }

    private void await() {
        try {
            changed.wait();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted", e);
        }
    }

    private void refuseFailed() {
        if (failure != null) {
            throw failure;
        }
    }

    private IllegalStateException mixed(long offset, String what) {
        // First, because rows that the flush under way has may be the ones that are out of order.
        end(false);
        positions.dispute(offset);
        positions.release();
        return Refusal.of(
                "PARTITION_MIXED",
                what + " Rows of a partition must come in the order of Kafka, and in one task.",
                "Rows of the partition may be missing, so the query is not started again by itself.",
                "Take everything out of the query that moves rows between tasks or changes their order, and see"
                        + " `pgonce explain PARTITION_MIXED`.");
    }
}
