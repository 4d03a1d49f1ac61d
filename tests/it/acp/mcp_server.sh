#!/bin/sh
# A small MCP server with three tools: `note` answers with what it sees of its environment, `write` writes a file, `die`
# ends it.
tool='"inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}'
while IFS= read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9][0-9]*\).*/\1/p')
  case "$line" in
    *'"method":"initialize"'*)
      result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"notes","version":"1"}}' ;;
    *'"method":"tools/list"'*)
      result='{"tools":[{"name":"note","description":"Notes a text",'$tool'},{"name":"write","description":"Writes a file",'$tool'},{"name":"die","description":"Ends",'$tool'}]}' ;;
    *'"name":"note"'*)
      result='{"content":[{"type":"text","text":"noted ['$A_TOKEN'] ['$PLAIN'] ['$GIVEN_TOKEN']"}]}' ;;
    *'"name":"write"'*)
      printf 'after' > draft.txt
      result='{"content":[{"type":"text","text":"written"}]}' ;;
    *'"name":"die"'*) exit 1 ;;
    *) continue ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
