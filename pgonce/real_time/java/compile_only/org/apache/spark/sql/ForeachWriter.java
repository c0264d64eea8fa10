package org.apache.spark.sql;

/** Spark's class, as far as the compiler must know it; it is not packed. */
public abstract class ForeachWriter<T> implements java.io.Serializable {
    public abstract boolean open(long partitionId, long epochId);

    public abstract void process(T value);

    public abstract void close(Throwable errorOrNull);
}
