#!/bin/sh
# Asks a model and prints its answer: chat.sh 'How do I reverse a list?'
# Needs ollmctl. A single call goes over the socket with socat or nc, where one of them is installed.
set -eu
question=${1:-How do I reverse a list?}

# Calls a method and prints the reply, one line of JSON.
call() {
  request="{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"$1\",\"params\":$2}"
  if command -v socat >/dev/null; then
    printf '%s\n' "$request" | socat -t30 - UNIX-CONNECT:"$(ollmctl socket)"
  elif command -v nc >/dev/null; then
    printf '%s\n' "$request" | nc -N -U "$(ollmctl socket)"
  else
    ollmctl call "$1" "$2"
  fi
}

# Makes a text a string of JSON.
quote() {
  printf '%s' "$1" | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e '1s/^/"/' -e '$s/$/"/' -e '$!s/$/\\n/' | tr -d '\n'
}

session=$(call session.create '{}' | sed -n 's/.*"sessionId": *"\([^"]*\)".*/\1/p' | head -n 1)
message="{\"role\":\"user\",\"content\":$(quote "$question")}"
# Each event is a line; those with a piece of the answer have its text. What a terminal would obey is left out.
ollmctl call chat.send "{\"sessionId\":\"$session\",\"message\":$message}" |
  sed -n -e 's/\\u00[01][0-9a-f]/?/g' -e 's/.*"kind":"delta","text":"\(.*\)"}.*/\1/p' |
  while IFS= read -r text; do printf '%b' "$text"; done
echo
