package main

import (
	"strings"
	"testing"
)

// TestSchedules checks the requests and the output of the schedule commands.
func TestSchedules(t *testing.T) {
	const row = `
QUEUE  NAME     CRON       ZONE          KIND   NEXT                  FIRED  SKIPPED  LAST
`
	tests := []struct {
		args       []string
		code       int
		call, want string
	}{
		{[]string{"ls"}, exitOK, "GET /v1/schedules", row + `build  nightly  0 2 * * *  Europe/Paris  shell  2026-11-21 02:00 UTC      7        1  10h00m
build  weekly   0 2 * * *  Europe/Paris  shell  paused                    7        1  10h00m
`},
		{[]string{"pause", "build", "nightly"}, exitOK, "POST /v1/schedules/build/nightly/pause", strings.Replace(row, "                  FIRED", "    FIRED", 1) + `build  nightly  0 2 * * *  Europe/Paris  shell  paused      7        1  10h00m
`},
		{[]string{"resume", "build", "nightly"}, exitOK, "POST /v1/schedules/build/nightly/resume", row + `build  nightly  0 2 * * *  Europe/Paris  shell  2026-11-21 02:00 UTC      7        1  10h00m
`},
		{[]string{"rm", "build", "nightly"}, exitOK, "DELETE /v1/schedules/build/nightly", ""},
		{[]string{"add", "build", "n", "@daily", "shell", "--tz", "Asia/Tokyo", "--missed", "run-all", "--missed-cap", "3", "--class", "low", "--label", "a=b", "--require", "gpu=yes", "-o", "json"}, exitOK,
			`POST /v1/schedules {"queue":"build","name":"n","cron":"@daily","zone":"Asia/Tokyo","missed":"run-all","missed_cap":3,"kind":"shell","class":"low","labels":{"a":"b"},"require":["gpu=yes"]}`, "-"},
		{[]string{"add", "build", "n", "@daily", "shell", "-", "-o", "json"}, exitOK, `POST /v1/schedules {"queue":"build","name":"n","cron":"@daily","kind":"shell"}`, "-"},
		{[]string{"add", "build", "n", "@daily"}, exitUsage, "", ""},
		{[]string{"add", "build", "n", "@daily", "shell", "a", "b"}, exitUsage, "", ""},
		{[]string{"add", "build", "n", "@daily", "shell", "--label", "x"}, exitUsage, "", ""},
		{[]string{"rm", "build"}, exitUsage, "", ""},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			n := newCannedNode()
			code, out, errs := command(t, n, append([]string{"schedule"}, tt.args...)...)
			if calls := strings.Join(n.Requests(), "; "); code != tt.code || calls != tt.call {
				t.Errorf("%d, want %d; the node was asked %q, want %q\n%s", code, tt.code, calls, tt.call, errs)
			}
			if tt.want != "-" {
				same(t, out, tt.want)
			}
		})
	}
}
