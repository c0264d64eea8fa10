package org.apache.spark.util;

/** Spark's class, as far as the compiler must know it; it is not packed. */
public class CollectionAccumulator<T> implements java.io.Serializable {
    public void add(T v) {
        throw new UnsupportedOperationException();
    }

    public java.util.List<T> value() {
        throw new UnsupportedOperationException();
    }

    public void reset() {
        throw new UnsupportedOperationException();
    }
}
