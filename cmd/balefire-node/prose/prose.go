// Package prose makes English of the notes in a node's answers: what blocks a task, what an
// operator should look at, and what to do about it. It is the only place with these texts;
// programs read the codes.
package prose

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/balefire/balefire/wire"
)

// Text returns what a note states. It never is empty: for a code that this program does
// not know it is the code.
func Text(n wire.Note) string {
	text, _ := sentences(n)
	return expand(text, n.NoteArgs)
}

// Fix returns what to do about it, mostly a command; empty: nothing, or it is not known.
func Fix(n wire.Note) string {
	_, fix := sentences(n)
	return expand(fix, n.NoteArgs)
}

// Line returns the text with the fix in parentheses.
func Line(n wire.Note) string {
	if fix := Fix(n); fix != "" {
		return Text(n) + " (" + fix + ")"
	}
	return Text(n)
}

func sentences(n wire.Note) (text, fix string) {
	say, known := table[n.Code]
	if !known {
		return string(n.Code), ""
	}
	text, fix = say(n.NoteArgs)
	if n.Result {
		about := "it has ended here; its result: "
		if n.Code == wire.NoteQueueHomeLost {
			about = "its result is stored here for its home: "
		}
		text = about + text
	}
	return text, fix
}

// placeholder matches {name} and {count|singular|plural}.
var placeholder = regexp.MustCompile(`\{(\w+)(?:\|([^|}]*)\|([^|}]*))?\}`)

// expand puts the arguments into a sentence. Text of peers is inserted as it is, on one line, and
// never expanded again.
func expand(s string, a wire.NoteArgs) string {
	return replace(s, func(name string) string { return argument(name, a) })
}

// replace puts values into a sentence.
func replace(s string, argument func(name string) string) string {
	return placeholder.ReplaceAllStringFunc(s, func(p string) string {
		m := placeholder.FindStringSubmatch(p)
		value := strings.Join(strings.Fields(argument(m[1])), " ") // text of a peer cannot add a line
		switch {
		case m[2] == "":
			return value
		case value == "1":
			return "1 " + m[2]
		}
		return value + " " + m[3]
	})
}

func argument(name string, a wire.NoteArgs) string {
	switch name {
	case "count":
		return strconv.Itoa(a.Count)
	case "of":
		return strconv.Itoa(a.Of)
	case "held":
		return strconv.Itoa(a.Held)
	case "attempts":
		return strconv.Itoa(a.Attempts)
	case "abandons":
		return strconv.Itoa(a.Abandons)
	case "generation":
		return strconv.FormatUint(a.Generation, 10)
	case "ago":
		return seconds(a.Seconds, time.Second)
	case "names":
		return strings.Join(a.Names, ", ")
	case "readers":
		return readers(a.Names)
	case "first":
		return append(a.Names, "")[0]
	case "time":
		return date(a.Time, time.RFC3339)
	case "date":
		return date(a.Time, time.DateTime)
	case "day":
		return date(a.Time, time.DateOnly)
	}
	if a.Box != "" {
		switch name {
		case "add", "resume", "set":
			return boxCommand(name, a.Box)
		}
	}
	if name == "reader" {
		return cmp.Or(append(a.Names, "")[0], "a reader")
	}
	if name == "what" {
		if a.Box != "" {
			return "mail"
		}
		return "task"
	}
	if d := a.Dial; d != nil {
		switch name {
		case "dial":
			return dial(d)
		case "dials":
			return strconv.Itoa(d.Failed)
		case "dialed":
			return seconds(d.Seconds, time.Second)
		case "idle":
			return seconds(d.Idle, time.Second)
		case "error":
			return Plain(d.Error)
		}
	}
	if name == "problem" && a.Cause != "" {
		inner := wire.Note{Code: wire.NoteCode(a.Cause), NoteArgs: a}
		inner.Cause = ""
		return Line(inner)
	}
	if name == "detail" || name == "problem" {
		return Plain(a.Detail)
	}
	if name == "cause" {
		return Cause(a.Cause, a.Refusal, a.Detail)
	}
	if name == "doubt" && a.Clock != nil {
		return doubt(a.Clock)
	}
	if name == "transfer" && a.Transfer != nil {
		return Transfer(a.Transfer)
	}
	return map[string]string{
		"box": a.Box, "peer": a.Peer, "other": a.Other, "self": a.Self, "queue": a.Queue, "task": a.Task, "kind": a.Kind, "key": a.Key, "state": a.State,
		"refusal": a.Refusal, "path": a.Path, "epoch": a.Epoch,
	}[name]
}

// readers names the readers of a box; they need not have a name.
func readers(names []string) string {
	named := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "" })
	switch n := len(names) - len(named); {
	case n == 1:
		named = append(named, "a reader without a name")
	case n > 1:
		named = append(named, fmt.Sprintf("%d readers without a name", n))
	}
	return strings.Join(named, ", ")
}

// packages are the names with which packages begin their errors.
var packages = []string{
	"addressbook", "audit", "backlog", "bodies", "box", "chain", "clock", "command", "dispatch", "gossip", "identity", "inbox", "mail", "mailbox",
	"mailstream", "mem", "nuts", "outbox", "ownership", "pebble", "proto", "schedule", "store", "submit", "transport",
}

// packagePrefix matches the prefixes of errors that are for programmers: the name of a
// package, and "invalid request" and "too large", which the rest of the error explains.
var packagePrefix = regexp.MustCompile(`(^|: )(?:(?:invalid request|too large|` + strings.Join(packages, "|") + `): )+`)

// Plain returns the text of an error without package prefixes.
func Plain(text string) string { return packagePrefix.ReplaceAllString(text, "$1") }

// boxCommand returns the command that makes or resumes a box, without the name of its node.
func boxCommand(verb, box string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(box, "agent:"), "@")
	group := "mailbox"
	if topic, is := strings.CutPrefix(box, "topic:"); is {
		group, name = "topic", topic
		if topic, sub, both := strings.Cut(topic, "/"); both {
			group, name = "sub", topic+" "+sub
		}
	}
	return group + " " + verb + " " + name
}

func date(t *time.Time, layout string) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(layout)
}

// seconds formats a duration as 1m5s.
func seconds(s float64, round time.Duration) string {
	return time.Duration(s * float64(time.Second)).Round(round).String()
}

// dial describes the result of the latest dial and the time of the next one.
func dial(d *wire.Dialed) string {
	next := "it is being dialed now"
	if d.Next > 0 {
		next = "the next dial is in " + seconds(d.Next, 100*time.Millisecond)
	}
	if d.Error == "" {
		return next
	}
	return fmt.Sprintf("the last attempt, %s ago, failed: %s; %s", seconds(d.Seconds, time.Second), Plain(d.Error), next)
}

// doubt explains why the clock is doubted and what ends the doubt.
func doubt(c *wire.ClockDoubt) string {
	off, way := c.Off, "ahead of"
	if off < 0 {
		off, way = -off, "behind"
	}
	than := "the time expected from the uptime of the machine"
	if c.Stopped {
		than = "its time when this node stopped"
	}
	if c.Outside {
		return "the clock of this machine is doubted: the certificate of this node is not valid at its time, nor within 90 days of it; until the clock is right nothing expires and nothing old is deleted"
	}
	text := fmt.Sprintf("the clock of this machine is doubted: it is %s %s %s", seconds(off, time.Second), way, than)
	if c.Denied {
		text += ", and a connected peer disagrees"
	}
	return fmt.Sprintf("%s; until a connected peer agrees with it, or for %s, nothing expires and nothing old is deleted", text, seconds(c.Left, time.Second))
}

// aheadOf describes a difference between two clocks.
func aheadOf(s float64) string {
	if s < 0 {
		return seconds(-s, time.Second) + " behind"
	}
	return seconds(s, time.Second) + " ahead of"
}

// Transfer describes the progress of a body or a result.
func Transfer(x *wire.Transfer) string {
	way := "from"
	if x.Direction == "out" {
		way = "to"
	}
	text := fmt.Sprintf("its %s is being transferred %s %s: %s of %s", x.What, way, x.Peer, mib(x.Bytes), mib(x.Size))
	if x.Size > 0 {
		text += fmt.Sprintf(" (%d %%)", x.Bytes*100/x.Size)
	}
	if x.Rate > 0 {
		text += fmt.Sprintf(", %s/s", mib(int64(x.Rate)))
	}
	if x.Left > 0 {
		text += fmt.Sprintf(", %s left", seconds(x.Left, time.Second))
	}
	return text
}

// mib formats a number of bytes with a suitable unit.
func mib(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
}
