package pgonce;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;

/**
 * How rows are written, as Python has decided on the driver. It travels to executors within the writer.
 *
 * <p>No text of it is ever printed: {@code properties} may have a password.
 */
final class Settings implements Serializable {
    private static final long serialVersionUID = 1L;

    final String url;
    final Properties properties = new Properties();
    final String table;
    // What a session has after login, by the names of Postgres's settings.
    final Map<String, String> session = new HashMap<>();
    final long writerId;
    final String runId;
    final String claim;
    final String flush;
    final String look;
    final String dispute;
    final boolean oneRowARecord;
    // A continuous task lives as long as the query, and Spark would keep all its reports until then.
    final boolean reports;
    final double retrySeconds;
    final List<String> columns;
    private final Set<String> passing;
    private final Map<String, List<String>> remedies = new HashMap<>();

    Settings(Map<String, Object> given) {
        url = (String) given.get("url");
        for (Map.Entry<?, ?> entry : ((Map<?, ?>) given.get("properties")).entrySet()) {
            properties.setProperty((String) entry.getKey(), (String) entry.getValue());
        }
        table = (String) given.get("table");
        for (Map.Entry<?, ?> entry : ((Map<?, ?>) given.get("session")).entrySet()) {
            session.put((String) entry.getKey(), (String) entry.getValue());
        }
        writerId = ((Number) given.get("writer_id")).longValue();
        runId = (String) given.get("run_id");
        claim = (String) given.get("claim");
        flush = (String) given.get("flush");
        look = (String) given.get("look");
        dispute = (String) given.get("dispute");
        oneRowARecord = (Boolean) given.get("one_row_a_record");
        reports = (Boolean) given.get("reports");
        retrySeconds = ((Number) given.get("retry_seconds")).doubleValue();
        columns = new ArrayList<>();
        for (Object kind : (List<?>) given.get("columns")) {
            columns.add((String) kind);
        }
        passing = new HashSet<>();
        for (Object state : (List<?>) given.get("passing")) {
            passing.add((String) state);
        }
        for (Map.Entry<?, ?> entry : ((Map<?, ?>) given.get("remedies")).entrySet()) {
            List<String> remedy = new ArrayList<>();
            for (Object text : (List<?>) entry.getValue()) {
                remedy.add((String) text);
            }
            remedies.put((String) entry.getKey(), remedy);
        }
    }

    /** Whether the same may succeed when it is done again; by pgonce's one list of SQLSTATEs, or classes of them. */
    boolean passes(String state) {
        return state == null || passing.contains(state) || passing.contains(state.substring(0, 2));
    }

    /** The code of an error, and what to do: pgonce's for an SQLSTATE, or its class; null if there is none. */
    List<String> remedy(String state) {
        if (state == null) {
            return null;
        }
        List<String> found = remedies.get(state);
        return found != null ? found : remedies.get(state.substring(0, 2));
    }
}
