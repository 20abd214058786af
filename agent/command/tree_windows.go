package command

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// A processTree is a program and all processes that it started: a job object, which
// also ends with this process. Processes that the program starts before it is put
// into the job are not in it.
type processTree struct {
	cmd *exec.Cmd
	job windows.Handle
}

// newProcessTree prepares cmd: with a process group of its own, which can be sent
// Ctrl-Break.
func newProcessTree(cmd *exec.Cmd, _ string, _ *account) *processTree {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
	return &processTree{cmd: cmd}
}

func (t *processTree) start() error {
	job, err := newJobObject()
	if err != nil {
		return err
	}
	t.job = job
	if err := t.cmd.Start(); err != nil {
		t.close()
		return err
	}
	if err := t.adopt(); err != nil {
		err = errors.Join(err, t.cmd.Process.Kill())
		_ = t.cmd.Wait() // it was killed
		t.close()
		return fmt.Errorf("put it into a job object: %w", err)
	}
	return nil
}

func newJobObject() (windows.Handle, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, fmt.Errorf("create job object: %w", err)
	}
	var info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	info.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	if err != nil {
		return 0, errors.Join(fmt.Errorf("set up job object: %w", err), windows.CloseHandle(job))
	}
	return job, nil
}

// adopt puts the program into the job.
func (t *processTree) adopt() error {
	p, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(t.cmd.Process.Pid))
	if err != nil {
		return err
	}
	return errors.Join(windows.AssignProcessToJobObject(t.job, p), windows.CloseHandle(p))
}

// await returns when the program has ended.
func (t *processTree) await() { _ = t.cmd.Wait() } // an exit code is not an error here

func (t *processTree) reap() {}

func (t *processTree) close() { _ = windows.CloseHandle(t.job) }

// accounting is JOBOBJECT_BASIC_ACCOUNTING_INFORMATION.
type accounting struct {
	times                                                          [4]int64
	pageFaults, totalProcesses, activeProcesses, terminatedProcess uint32
}

// countOthers counts the processes in the job.
func (t *processTree) countOthers() int {
	var info accounting
	err := windows.QueryInformationJobObject(t.job, windows.JobObjectBasicAccountingInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)), nil)
	if err != nil {
		return 0
	}
	return int(info.activeProcesses)
}

// signal asks the program to exit, or kills all processes of the job.
func (t *processTree) signal(hard bool) {
	if hard {
		_ = windows.TerminateJobObject(t.job, 1)
		return
	}
	// A program without a console does not get it; it is killed after Grace.
	_ = windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(t.cmd.Process.Pid))
}

// killed is always empty on Windows: every process has an exit code.
func killed(*os.ProcessState) string { return "" }
