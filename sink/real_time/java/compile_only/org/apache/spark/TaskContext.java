package org.apache.spark;

/** Spark's class, as far as the compiler must know it; it is not packed. */
public abstract class TaskContext implements java.io.Serializable {
    public static TaskContext get() {
        throw new UnsupportedOperationException();
    }

    public abstract int stageId();

    public abstract long taskAttemptId();
}
