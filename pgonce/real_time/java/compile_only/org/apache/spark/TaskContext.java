package org.apache.spark;

import org.apache.spark.util.TaskCompletionListener;

/** Spark's class, as far as the compiler must know it; it is not packed. */
public abstract class TaskContext implements java.io.Serializable {
    public static TaskContext get() {
        throw new UnsupportedOperationException();
    }

    public abstract int stageId();

    public abstract long taskAttemptId();

    public abstract TaskContext addTaskCompletionListener(TaskCompletionListener listener);
}
