package wire

// A HandlerSpec describes what this node runs for a kind, and who may request it.
// Nothing is allowed unless Allow lists it.
type HandlerSpec struct {
	Kind        string   `yaml:"kind" json:"kind" doc:"the name that senders use"`
	Type        string   `yaml:"type,omitempty" json:"type,omitempty" enum:"command,discard,echo,sha256" doc:"command (default) runs a program; echo answers with the body, sha256 with its digest, discard with nothing"`
	Exec        []string `yaml:"exec,omitempty" json:"exec,omitempty" doc:"program and its fixed arguments, each of 64 KiB at most; never a shell line"`
	Args        bool     `yaml:"args,omitempty" json:"args,omitempty" doc:"the task's arguments are appended"`
	AllowFlags  bool     `yaml:"allow_flags,omitempty" json:"allow_flags,omitempty" doc:"with args: also arguments that begin with -; default they are refused"`
	Body        string   `yaml:"body,omitempty" json:"body,omitempty" enum:"stdin,file" doc:"how the program gets the body; default stdin"`
	Allow       []string `yaml:"allow" json:"allow" doc:"peer:NAME (or just NAME), peer:ID or role:ROLE"`
	Profile     string   `yaml:"profile,omitempty" json:"profile,omitempty" enum:"read-only,dev-write,dangerous" doc:"default dev-write; dangerous is allowed peer by peer, never by role"`
	Timeout     string   `yaml:"timeout,omitempty" json:"timeout,omitempty" doc:"of one run; default 10m, 0 none"`
	Concurrency int      `yaml:"concurrency,omitempty" json:"concurrency,omitempty" maximum:"2147483647" doc:"runs at once; default the node's slots"`
	MaxAttempts int      `yaml:"max_attempts,omitempty" json:"max_attempts,omitempty" maximum:"2147483647" doc:"default 3"`
	MaxRetries  int      `yaml:"max_retries,omitempty" json:"max_retries,omitempty" maximum:"2147483647" doc:"attempts that a task may ask for with --retries; default max_attempts"`
	Lanes       string   `yaml:"lanes,omitempty" json:"lanes,omitempty" enum:"origin,shared" doc:"which tasks with one ordering key run in order: those of each origin (default), or shared: those of all origins; it is for tasks sent to this node by name, a queue has its own setting"`
	OnCrash     string   `yaml:"on_crash,omitempty" json:"on_crash,omitempty" enum:"retry,probe,park" doc:"what happens when a run was cut off; default park: nothing is repeated unless it was declared repeatable (retry for the types discard, echo and sha256); probe runs exec --check KEY: 0 done, 10 not done"`
	MaxBody     int64    `yaml:"max_body,omitempty" json:"max_body,omitempty" doc:"bytes; default only the node's limit"`
	MaxOutput   int64    `yaml:"max_output,omitempty" json:"max_output,omitempty" doc:"bytes of standard output; default 10 MiB"`
	OnOverflow  string   `yaml:"on_overflow,omitempty" json:"on_overflow,omitempty" enum:"fail,cut" doc:"when a run writes more than max_output, or than the task's max_result: fail (default) stops it and ends the task as FAILED, OUTPUT_TOO_LARGE; cut keeps the beginning and lets it succeed"`
	Env         []string `yaml:"env,omitempty" json:"env,omitempty" doc:"names of the node's environment variables that the program gets, or NAME=VALUE"`
	RunAs       string   `yaml:"run_as,omitempty" json:"run_as,omitempty" doc:"USER or USER:GROUP that the program runs as, so that it cannot read the node's keys; Linux, and the node needs CAP_SETUID and CAP_SETGID; default the node's user"`
	Dir         string   `yaml:"dir,omitempty" json:"dir,omitempty" doc:"working folder; default a new one for each run"`
}

// Types of handlers.
const (
	TypeCommand  = "command"  // runs a program
	TypeDiscard  = "discard"  // reads the body and succeeds
	TypeEcho     = "echo"     // answers with the body
	TypeSHA256   = "sha256"   // answers with the body's digest
	TypeFunction = "function" // calls a function of the program that embeds the node
)

// A Handler describes how this node runs tasks of one kind.
type Handler struct {
	Kind        string   `json:"kind"`
	Type        string   `json:"type" enum:"command,discard,echo,sha256"`
	Exec        []string `json:"exec,omitempty"`
	Allow       []string `json:"allow"`
	Profile     string   `json:"profile"`
	Timeout     string   `json:"timeout" doc:"limit of one run, such as 10m0s; 0s: none"`
	Concurrency int      `json:"concurrency"`
	MaxAttempts int      `json:"max_attempts"`
	OnCrash     string   `json:"on_crash"`
	Running     int      `json:"running"`
	Waiting     int      `json:"waiting"`
	Problem     *Note    `json:"problem,omitempty" doc:"why its program cannot be started now, or why the node does not offer the handler"`
	Warnings    []Note   `json:"warnings,omitempty" doc:"what allowed senders could do with its program, and which entries of its allow list match no member"`
}
