package pgonce;

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
}
