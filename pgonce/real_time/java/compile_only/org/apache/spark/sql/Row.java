package org.apache.spark.sql;

/** Spark's interface, as far as the compiler must know it; it is not packed. */
public interface Row extends java.io.Serializable {
    Object get(int i);
}
