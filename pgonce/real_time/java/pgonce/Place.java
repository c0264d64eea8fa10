package pgonce;

/** A topic, and the number of one of its partitions. */
final class Place {
    final String topic;
    final int partition;

    Place(String topic, int partition) {
        this.topic = topic;
        this.partition = partition;
    }

    /** As text. Kafka allows no space in a topic's name. */
    String key() {
        return topic + " " + partition;
    }

    @Override
    public String toString() {
        return "partition " + partition + " of topic " + topic;
    }
}
