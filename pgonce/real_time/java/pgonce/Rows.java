package pgonce;

import java.util.List;
import org.apache.spark.sql.Row;

/**
 * Rows that wait for a flush, column by column, in the order of their offsets.
 *
 * <p>Only whole records are flushed: where a record can become several rows, its last row is known only when a row of
 * the next record has come, or the batch has ended.
 */
final class Rows {
    private static final int FIRST_COLUMN = 3;

    private final List<String> kinds;
    private final boolean oneRowARecord;
    private ArrayText[] columns;
    private long first;
    private long last;
    private int count;
    // Rows of records that are whole, and where the rows of the last record begin in each column's text.
    private int whole;
    private long lastWhole;
    private final int[] marks;

    Rows(List<String> kinds, boolean oneRowARecord) {
        this.kinds = kinds;
        this.oneRowARecord = oneRowARecord;
        marks = new int[kinds.size()];
        begin();
    }

    private void begin() {
        columns = new ArrayText[kinds.size()];
        for (int i = 0; i < columns.length; i++) {
            columns[i] = new ArrayText(kinds.get(i));
        }
        count = 0;
        whole = 0;
    }

    void add(long offset, Row row) {
        if (count == 0) {
            first = offset;
        } else if (offset != last) {
            allAreWhole();
        }
        for (int i = 0; i < columns.length; i++) {
            columns[i].add(row.get(FIRST_COLUMN + i));
        }
        last = offset;
        count++;
        if (oneRowARecord) {
            allAreWhole();
        }
    }

    /** No more rows of the last record will come. */
    void allAreWhole() {
        whole = count;
        lastWhole = last;
        for (int i = 0; i < columns.length; i++) {
            marks[i] = columns[i].length();
        }
    }

    int whole() {
        return whole;
    }

    int count() {
        return count;
    }

    long characters() {
        long sum = 0;
        for (ArrayText column : columns) {
            sum += column.length();
        }
        return sum;
    }

    /** The rows of whole records, which are taken out. */
    Flush take() {
        String[] texts = new String[columns.length];
        ArrayText[] rest = new ArrayText[columns.length];
        for (int i = 0; i < columns.length; i++) {
            rest[i] = columns[i].after(marks[i]);
            texts[i] = columns[i].until(marks[i]);
        }
        Flush taken = new Flush(texts, whole, first, lastWhole);
        int left = count - whole;
        begin();
        columns = rest;
        count = left;
        first = last;
        return taken;
    }

    /** The rows that one statement writes: the text of an array for each column, and which offsets they have. */
    static final class Flush {
        final String[] columns;
        final int count;
        final long first;
        final long last;

        Flush(String[] columns, int count, long first, long last) {
            this.columns = columns;
            this.count = count;
            this.first = first;
            this.last = last;
        }
    }
}
