#!/bin/bash
exec java "${KAFKA_HEAP_OPTS:--Xmx256M}" -cp "/opt/kafka/libs/*" "$@"
