#!/bin/sh
# Send and read mail with curl.
#
#   mail.sh send BOX [KEY [DEDUPE]]     send standard input, print the id of the mail
#   mail.sh lease BOX [WAIT]            print LEASE and ATTEMPT on a line, then the body; nothing if there is no mail
#   mail.sh ack BOX LEASE               the mail is done
#   mail.sh nack BOX LEASE [REASON]     the mail failed: it is delivered again
#
# The socket of the node is $BALEFIRE_SOCKET; "balefire-node config path" prints it. What is
# refused is printed in the node's words, and the exit code is 1. No answer is not a refusal:
# send the mail again with the same DEDUPE, and it is the same mail; acknowledge it again.
set -eu

socket=${BALEFIRE_SOCKET:-/run/balefire/node.sock}

usage() {
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
}

# post PATH sends standard input to the node and prints its answer, which may be a refusal.
post() {
	curl --silent --show-error --fail-with-body --unix-socket "$socket" \
		--header 'Content-Type: application/json' --data-binary @- "http://node$1"
}

# refuse prints the answer of the node, if there is one, and ends the script.
refuse() {
	[ -z "$1" ] || printf '%s\n' "$1" >&2
	exit 1
}

# quote escapes what has a meaning in a JSON string.
quote() { printf '%s' "$1" | sed 's/["\\]/\\&/g'; }

# settle BOX DOCUMENT fails unless the node says OK. STALE says that somebody else was given
# the mail since, or that it has ended.
settle() {
	answer=$(printf '%s' "$2" | post "/v1/mailboxes/$1/settle") || refuse "$answer"
	case $answer in
	*'"code":"OK"'*) ;;
	*) refuse "$answer" ;;
	esac
}

[ $# -ge 2 ] || usage
case $1 in
send)
	# The body is base64 on its way: it may be any bytes.
	answer=$({
		printf '{"to":"%s","key":"%s","dedupe":"%s","body":"' "$(quote "$2")" "$(quote "${3-}")" "$(quote "${4-}")"
		base64 | tr -d '\n'
		printf '"}'
	} | post /v1/mail) || refuse "$answer"
	printf '%s\n' "$answer" | sed 's/^{"id":"\([^"]*\)".*/\1/'
	;;
lease)
	answer=$(printf '{%s}' "${3:+\"wait\":\"$(quote "$3")\"}" | post "/v1/mailboxes/$2/lease") || refuse "$answer"
	# A script that needs more of a mail than this takes jq.
	printf '%s\n' "$answer" | sed -n 's/^{"items":\[{"lease":"\([^"]*\)","attempt":\([0-9]*\),.*/\1 \2/p'
	printf '%s\n' "$answer" | sed -n 's/.*"size":[0-9]*,"body":"\([^"]*\)".*/\1/p' | base64 -d
	;;
ack)
	[ $# -eq 3 ] || usage
	settle "$2" "{\"ack\":[\"$(quote "$3")\"]}"
	;;
nack)
	[ $# -ge 3 ] || usage
	settle "$2" "{\"nack\":[{\"lease\":\"$(quote "$3")\",\"reason\":\"$(quote "${4-}")\"}]}"
	;;
*) usage ;;
esac
