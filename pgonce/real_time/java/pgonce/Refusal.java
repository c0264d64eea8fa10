package pgonce;

import java.sql.SQLException;
import java.util.List;

/**
 * Errors of pgonce's: the text says what happened, what it means for the data, and what to do.
 *
 * <p>They are of a class of Java's own. Spark brings an error of any other from the task to the driver only if the driver
 * finds that class, and otherwise says "UnknownReason".
 */
final class Refusal {
    private Refusal() {}

    static IllegalStateException of(String code, String what, String data, String help) {
        return new IllegalStateException("[" + code + "] " + what + " " + data + " Help: " + help);
    }

    /**
     * An error of Postgres's, in the words that Python has for it.
     *
     * @param next the record below which all rows are there.
     */
    static IllegalStateException ofPostgres(Settings settings, String what, SQLException e, long next) {
        // The text of an error may show values of a row; its code, and the names of a constraint and a column, do not.
        String state = e.getSQLState() == null ? "none" : e.getSQLState();
        String there = "Rows below record " + next + " are there, and later ones may be.";
        List<String> remedy = settings.remedy(e.getSQLState());
        if (remedy == null) {
            return Refusal.of(
                    "RETRIES_EXHAUSTED",
                    "Postgres could not " + what + " (SQLSTATE " + state + ").",
                    there,
                    "Check that the server runs and can be reached from executors, and start the query again: it goes"
                            + " on at the stored positions.");
        }
        String named = named(e);
        return Refusal.of(
                remedy.get(0),
                "Postgres refused to " + what + " (SQLSTATE " + state + (named.isEmpty() ? "" : ", " + named) + ").",
                there,
                remedy.get(1) + " Then start the query again: it goes on at the stored positions.");
    }

    // The JDBC driver's own class, which the compiler is not given.
    private static String named(SQLException e) {
        StringBuilder found = new StringBuilder();
        try {
            Object message = e.getClass().getMethod("getServerErrorMessage").invoke(e);
            for (String part : new String[] {"Constraint", "Column"}) {
                Object name = message == null ? null : message.getClass().getMethod("get" + part).invoke(message);
                if (name != null) {
                    found.append(found.length() == 0 ? "" : ", ").append(part.toLowerCase()).append(' ').append(name);
                }
            }
        } catch (ReflectiveOperationException other) {
            return "";
        }
        return found.toString();
    }
}
