#!/bin/sh
# What the services of docker-compose.yml know each other by: made once, at random, each in a folder for those alone who
# need it. Run again, it keeps them all; to have others, remove the volumes.
set -eu
umask 077
cd "$1"
uid=10001

random() {
  python3 -c 'import secrets; print(secrets.token_hex(32))'
}

# What a coordinator may do in Valkey changes with its version, so that is written each time.
allow() {
  sed "s/PASSWORD_SHA256/$(printf %s "$1" | sha256sum | cut -d ' ' -f 1)/" "$2" > valkey/users.acl
  chmod 755 valkey
  chmod 644 valkey/users.acl # Valkey runs as a user of its own, and a hash is no secret to it
}

if [ -e coordinator/keys.json ]; then
  allow "$(sed 's/.*tidegate:\([^@]*\)@.*/\1/' coordinator/tidegate_redis_url)" "$2"
  echo "The secrets are there."
  exit 0
fi

password=$(random)
allow "$password" "$2"
printf %s "redis://tidegate:$password@$3/0" > coordinator/tidegate_redis_url
random > coordinator/tidegate_token_secret
export TIDEGATE_KEYS_FILE="coordinator/.keys.json"
rm -f "$TIDEGATE_KEYS_FILE" # of a start that was cut short
# The demo creates its jobs, adapts their rules, reports, and ends its input: that is more than a job in production does,
# for which report is enough.
tidegate keys create flights --role admin --prefix flights > spark/key
tidegate keys create prometheus --role read > observe/key
tidegate keys create people --role admin > people/key
random > grafana/password

if [ "$(id -u)" = 0 ]; then
  chown -R "$uid:$uid" coordinator spark observe grafana people
fi
# Last of all: where it is there, all is.
mv coordinator/.keys.json coordinator/keys.json
echo "The secrets were made."
