#!/bin/sh
# Creates random secrets for the services in docker-compose.yml, each in a folder for the services that need it. A second
# run keeps the secrets. To replace them, remove the volumes.
set -eu
umask 077
cd "$1"
uid=10001

random() {
  python3 -c 'import secrets; print(secrets.token_hex(32))'
}

# Writes the ACL file of Valkey at each run, because the permissions of a coordinator change with its version.
allow() {
  sed "s/PASSWORD_SHA256/$(printf %s "$1" | sha256sum | cut -d ' ' -f 1)/" "$2" > valkey/users.acl
  chmod 755 valkey
  chmod 644 valkey/users.acl # Valkey's own user must read it. It has only a hash of the password.
}

# Creates the key of the notifier, also in a cluster of an earlier version. $1: the keys file.
create_notifier() {
  if [ ! -s notifier/key ]; then
    TIDEGATE_KEYS_FILE=$1 tidegate keys create notifier --role report --prefix flights > notifier/.key
    mv notifier/.key notifier/key
  fi
}

if [ -e coordinator/keys.json ]; then
  create_notifier coordinator/keys.json
  allow "$(sed 's/.*tidegate:\([^@]*\)@.*/\1/' coordinator/tidegate_redis_url)" "$2"
  echo "The secrets exist already."
  exit 0
fi

password=$(random)
allow "$password" "$2"
printf %s "redis://tidegate:$password@$3/0" > coordinator/tidegate_redis_url
random > coordinator/tidegate_token_secret
export TIDEGATE_KEYS_FILE="coordinator/.keys.json"
rm -f "$TIDEGATE_KEYS_FILE" # An interrupted run leaves this file.
# The demo creates jobs, changes their configuration, reports, and completes its input, so it needs the role admin. A job
# in production needs the role report only.
tidegate keys create flights --role admin --prefix flights > spark/key
rm -f notifier/key
create_notifier "$TIDEGATE_KEYS_FILE"
tidegate keys create prometheus --role read > observe/key
tidegate keys create people --role admin > people/key
random > grafana/password

if [ "$(id -u)" = 0 ]; then
  chown -R "$uid:$uid" coordinator spark notifier observe grafana people
fi
# Create this file last: its existence means that all secrets exist.
mv coordinator/.keys.json coordinator/keys.json
echo "Created the secrets."
