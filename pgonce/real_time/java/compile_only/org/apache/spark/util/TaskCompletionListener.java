package org.apache.spark.util;

import org.apache.spark.TaskContext;

/** Spark's interface, as far as the compiler must know it; it is not packed. */
public interface TaskCompletionListener extends java.util.EventListener {
    void onTaskCompletion(TaskContext context);
}
