// A workload of FoundationDB's simulator that runs Python: the C++ interface for external workloads
// on one side, and the module `inside.clients` on the other.
//
// One interpreter serves all simulated clients. It runs on the simulator's network thread only, and
// only within calls from here or within callbacks of futures.
#include <Python.h>

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "foundationdb/ClientWorkload.h"

namespace {

using Promise = GenericPromise<bool>;

constexpr const char* kClients = "tests.long.simulation.cluster.inside.clients";

// The module _fdbsim: what Python asks of the simulator. A context and a promise are integers.

FDBWorkloadContext* context_of(PyObject* number) {
	return reinterpret_cast<FDBWorkloadContext*>(PyLong_AsUnsignedLongLong(number));
}

PyObject* now(PyObject*, PyObject* context) { return PyFloat_FromDouble(context_of(context)->now()); }

PyObject* random32(PyObject*, PyObject* context) {
	return PyLong_FromUnsignedLong(context_of(context)->rnd());
}

PyObject* client_id(PyObject*, PyObject* context) {
	return PyLong_FromLong(context_of(context)->clientId());
}

PyObject* client_count(PyObject*, PyObject* context) {
	return PyLong_FromLong(context_of(context)->clientCount());
}

PyObject* process(PyObject*, PyObject* context) {
	return PyLong_FromUnsignedLongLong(context_of(context)->getProcessID());
}

PyObject* set_process(PyObject*, PyObject* arguments) {  // (context, process)
	unsigned long long context, process;
	if (!PyArg_ParseTuple(arguments, "KK", &context, &process)) return nullptr;
	reinterpret_cast<FDBWorkloadContext*>(context)->setProcessID(process);
	Py_RETURN_NONE;
}

PyObject* option(PyObject*, PyObject* arguments) {  // (context, name) -> text, empty if not given
	unsigned long long context;
	const char* name;
	if (!PyArg_ParseTuple(arguments, "Ks", &context, &name)) return nullptr;
	std::string value = reinterpret_cast<FDBWorkloadContext*>(context)->getOption(name, std::string());
	return PyUnicode_FromStringAndSize(value.data(), value.size());
}

PyObject* trace(PyObject*, PyObject* arguments) {  // (context, is error, event, {name: text})
	unsigned long long context;
	int is_error;
	const char* event;
	PyObject *details, *key, *value;
	Py_ssize_t at = 0;
	if (!PyArg_ParseTuple(arguments, "KpsO!", &context, &is_error, &event, &PyDict_Type, &details))
		return nullptr;
	std::vector<std::pair<std::string, std::string>> pairs;
	while (PyDict_Next(details, &at, &key, &value)) {
		const char *name = PyUnicode_AsUTF8(key), *text = PyUnicode_AsUTF8(value);
		if (!name || !text) return nullptr;
		pairs.emplace_back(name, text);
	}
	auto severity = is_error ? FDBSeverity::Error : FDBSeverity::Info;
	reinterpret_cast<FDBWorkloadContext*>(context)->trace(severity, event, pairs);
	Py_RETURN_NONE;
}

PyObject* finish(PyObject*, PyObject* arguments) {  // (promise, is good)
	unsigned long long number;
	int is_good;
	if (!PyArg_ParseTuple(arguments, "Kp", &number, &is_good)) return nullptr;
	Promise* promise = reinterpret_cast<Promise*>(number);
	promise->send(bool(is_good));
	delete promise;
	Py_RETURN_NONE;
}

PyMethodDef functions[] = { { "now", now, METH_O, nullptr },
	                        { "random32", random32, METH_O, nullptr },
	                        { "client_id", client_id, METH_O, nullptr },
	                        { "client_count", client_count, METH_O, nullptr },
	                        { "process", process, METH_O, nullptr },
	                        { "set_process", set_process, METH_VARARGS, nullptr },
	                        { "option", option, METH_VARARGS, nullptr },
	                        { "trace", trace, METH_VARARGS, nullptr },
	                        { "finish", finish, METH_VARARGS, nullptr },
	                        { nullptr, nullptr, 0, nullptr } };

PyModuleDef module = {
	PyModuleDef_HEAD_INIT, "_fdbsim", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr
};

// The interpreter

[[noreturn]] void fail(const char* what) {
	if (Py_IsInitialized() && PyErr_Occurred()) PyErr_Print();
	fprintf(stderr, "simulation: %s\n", what);
	abort();
}

PyObject* required(PyObject* result, const char* what) {
	if (!result) fail(what);
	return result;
}

// The server loads this library for itself alone, but extension modules look for the symbols of
// Python among those of the whole process.
void share_symbols_of_python() {
	Dl_info found;
	if (!dladdr(reinterpret_cast<void*>(&Py_Initialize), &found) ||
	    !dlopen(found.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD))
		fail("libpython is not a shared library");
}

// Starts Python once in the process. It is never finalized, and this thread never lets go of its
// lock, except in ctypes around calls of libfdb_c.
PyObject* start_python(const std::string& executable, const std::string& folder) {
	static PyObject* clients = nullptr;
	if (clients) return clients;
	share_symbols_of_python();
	PyImport_AppendInittab("_fdbsim", [] { return PyModule_Create(&module); });
	PyConfig config;
	PyConfig_InitPythonConfig(&config);
	config.install_signal_handlers = 0;
	config.parse_argv = 0;
	config.write_bytecode = 0;
	config.use_hash_seed = 1;  // the order of a set of strings has to be the same in each run
	config.hash_seed = 0;
	PyConfig_SetBytesString(&config, &config.executable, executable.c_str());
	PyConfig_SetBytesString(&config, &config.program_name, executable.c_str());
	PyStatus status = Py_InitializeFromConfig(&config);
	PyConfig_Clear(&config);
	if (PyStatus_Exception(status)) fail(status.err_msg ? status.err_msg : "Python does not start");
	PyObject* path = PyUnicode_FromString(folder.c_str());
	PyList_Insert(PySys_GetObject("path"), 0, path);
	Py_DECREF(path);
	clients = required(PyImport_ImportModule(kClients), "the module of the clients does not load");
	return clients;
}

// The workload

class PythonWorkload final : public FDBWorkload {
public:
	explicit PythonWorkload(const std::string& name) : name(name) {}

	~PythonWorkload() {
		if (!client) return;
		Py_DECREF(required(PyObject_CallMethod(client, "close", nullptr), "close"));
		Py_DECREF(client);
	}

	std::string description() const override { return name; }

	bool init(FDBWorkloadContext* context) override {
		// Not options: they travel through the simulated network, where a longer path takes longer.
		const char* executable = std::getenv("FDBQ_SIMULATION_PYTHON");
		const char* folder = std::getenv("FDBQ_SIMULATION_FOLDER");
		if (executable == nullptr || folder == nullptr) {
			fail("FDBQ_SIMULATION_PYTHON and FDBQ_SIMULATION_FOLDER are not set");
		}
		PyObject* clients = start_python(executable, folder);
		auto number = reinterpret_cast<unsigned long long>(context);
		client = required(PyObject_CallMethod(clients, "create", "Ks", number, name.c_str()), "init");
		return true;
	}

	void setup(FDBDatabase* db, Promise done) override { begin("setup", db, std::move(done)); }
	void start(FDBDatabase* db, Promise done) override { begin("start", db, std::move(done)); }
	void check(FDBDatabase* db, Promise done) override { begin("check", db, std::move(done)); }
	void getMetrics(std::vector<FDBPerfMetric>&) const override {}

private:
	void begin(const char* phase, FDBDatabase* db, Promise done) {
		auto promise = reinterpret_cast<unsigned long long>(new Promise(std::move(done)));
		auto database = reinterpret_cast<unsigned long long>(db);
		PyObject* result = PyObject_CallMethod(client, "begin", "sKK", phase, database, promise);
		Py_DECREF(required(result, phase));
	}

	std::string name;
	PyObject* client = nullptr;
};

class PythonWorkloads final : public FDBWorkloadFactory {
public:
	std::shared_ptr<FDBWorkload> create(const std::string& name) override {
		return std::make_shared<PythonWorkload>(name);
	}
};

}  // namespace

extern "C" DLLEXPORT FDBWorkloadFactory* workloadFactory(FDBLogger*) {
	static PythonWorkloads workloads;
	return &workloads;
}
