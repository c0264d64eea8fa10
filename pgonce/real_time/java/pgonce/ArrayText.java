package pgonce;

import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;

/**
 * Many values of one column as the text of a Postgres array, which unnest makes rows of.
 *
 * <p>The kind of a column is the Postgres type of the array's elements.
 * https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
 */
final class ArrayText {
    private static final char[] HEX = "0123456789abcdef".toCharArray();

    private final String kind;
    private final StringBuilder text = new StringBuilder("{");

    ArrayText(String kind) {
        this.kind = kind;
    }

    int length() {
        return text.length();
    }

    void add(Object value) {
        if (text.length() > 1) {
            text.append(',');
        }
        if (value == null) {
            text.append("NULL");
            return;
        }
        switch (kind) {
            case "int2":
            case "int4":
            case "int8":
            case "float4":
            case "float8":
                // "NaN" and "Infinity" are Postgres's words too.
                text.append(value);
                break;
            case "bool":
                text.append((Boolean) value ? 't' : 'f');
                break;
            case "numeric":
                text.append(((BigDecimal) value).toPlainString());
                break;
            case "text":
                quote(decoded((byte[]) value));
                break;
            case "bytea":
                hex((byte[]) value);
                break;
            case "date":
                date(LocalDate.ofEpochDay(((Number) value).longValue()));
                break;
            case "timestamptz":
                long micros = ((Number) value).longValue();
                int nanos = (int) Math.floorMod(micros, 1_000_000L) * 1000;
                text.append('"');
                time(LocalDateTime.ofEpochSecond(Math.floorDiv(micros, 1_000_000L), nanos, ZoneOffset.UTC), "+00");
                text.append('"');
                break;
            case "timestamp":
                text.append('"');
                time((LocalDateTime) value, "");
                text.append('"');
                break;
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    /** The array up to this length. */
    String until(int length) {
        text.setLength(length);
        return text.append('}').toString();
    }

    /** What comes after this length, as an array of its own. */
    ArrayText after(int length) {
        ArrayText rest = new ArrayText(kind);
        // Behind a comma, unless nothing comes.
        rest.text.append(text, Math.min(length + 1, text.length()), text.length());
        return rest;
    }

    // Spark's strings may hold bytes that are no UTF-8. As a string of Java's they would come with other characters.
    private static String decoded(byte[] value) {
        try {
            return StandardCharsets.UTF_8
                    .newDecoder()
                    .onMalformedInput(CodingErrorAction.REPORT)
                    .onUnmappableCharacter(CodingErrorAction.REPORT)
                    .decode(ByteBuffer.wrap(value))
                    .toString();
        } catch (CharacterCodingException e) {
            throw Refusal.of(
                    "TEXT_NOT_UTF8",
                    "A string has bytes that are not UTF-8, which Postgres cannot store in a text.",
                    "It was not written.",
                    "Repair or replace such values in Spark, or write the column as binary into a bytea column.");
        }
    }

    private void quote(String value) {
        text.append('"');
        for (int i = 0; i < value.length(); i++) {
            char c = value.charAt(i);
            if (c == '"' || c == '\\') {
                text.append('\\');
            }
            text.append(c);
        }
        text.append('"');
    }

    private void hex(byte[] value) {
        text.append("\"\\\\x");
        for (byte b : value) {
            text.append(HEX[(b >> 4) & 15]).append(HEX[b & 15]);
        }
        text.append('"');
    }

    private void date(LocalDate value) {
        text.append('"');
        day(value);
        if (value.getYear() < 1) {
            text.append(" BC");
        }
        text.append('"');
    }

    private void time(LocalDateTime value, String zone) {
        day(value.toLocalDate());
        text.append(' ');
        digits(value.getHour(), 2);
        text.append(':');
        digits(value.getMinute(), 2);
        text.append(':');
        digits(value.getSecond(), 2);
        text.append('.');
        digits(value.getNano() / 1000, 6);
        text.append(zone);
        if (value.getYear() < 1) {
            text.append(" BC");
        }
    }

    private void day(LocalDate value) {
        // The year before 1 is 0 for Java, and 1 BC for Postgres.
        digits(value.getYear() < 1 ? 1 - value.getYear() : value.getYear(), 4);
        text.append('-');
        digits(value.getMonthValue(), 2);
        text.append('-');
        digits(value.getDayOfMonth(), 2);
    }

    private void digits(int number, int width) {
        String plain = Integer.toString(number);
        for (int i = plain.length(); i < width; i++) {
            text.append('0');
        }
        text.append(plain);
    }
}
