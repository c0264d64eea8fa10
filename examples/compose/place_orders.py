"""
Place orders in a Kafka topic, ten a second: ``python place_orders.py SERVERS TOPIC [HOW_MANY]``.

Numbers go on where the topic ends, so that each order has its own, however often this is started.
"""

import itertools
import json
import sys
import time
from datetime import datetime, timezone

from confluent_kafka import Consumer, Producer, TopicPartition

servers, topic = sys.argv[1:3]
wanted = int(sys.argv[3]) if len(sys.argv) > 3 else None


def orders_so_far() -> int:
    """How many records the topic has had."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "place-orders"})
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30)[1] for number in partitions]
    consumer.close()
    return sum(ends)


producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
first = orders_so_far() + 1
for order_id in itertools.islice(itertools.count(first), wanted):
    order = {
        "order_id": order_id,
        "customer": f"customer-{order_id % 100}",
        "amount": order_id % 10000 / 100,
        "placed_at": datetime.now(timezone.utc).isoformat(),
    }
    producer.produce(topic, json.dumps(order), order["customer"])
    producer.poll(0)
    time.sleep(0.1)
producer.flush()
