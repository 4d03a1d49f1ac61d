-- The subcommands: what they show, what they change, their completion, and that the documents list them.

local t = require("harness")

local api = vim.api

--- Records sessions with some messages in the home of the test; returns their ids.
local function record(title, ...)
  local session = t.call("session.create", { projectPath = t.project, title = title }).session
  for index, content in ipairs({ ... }) do
    local message = { role = index % 2 == 1 and "user" or "assistant", content = content }
    t.call("session.record", { sessionId = session.sessionId, message = message })
  end
  return session.sessionId
end

local function chosen(asked)
  t.wait("the question", function()
    return asked.is_done
  end)
  if not asked.chosen then
    error("no such item in\n" .. table.concat(asked.lines, "\n"), 2)
  end
end

--- Waits until the chat of a session is open, and returns it.
local function wait_open(session_id)
  return t.wait("the session is open", function()
    local chat = require("ollm.chat").of_session(session_id)
    return chat and chat.view:is_visible() and #chat.records > 0 and chat
  end)
end

--- Opens a file with lines in the project.
local function edit(name, lines)
  vim.fn.writefile(lines, t.project .. "/" .. name)
  vim.cmd.edit(vim.fn.fnameescape(t.project .. "/" .. name))
end

--- Returns the newest message of the user in a chat.
local function asked_message(chat)
  for index = #chat.records, 1, -1 do
    local message = chat.records[index].message
    if message and message.role == "user" then
      return message.parts[1].text
    end
  end
end

--- Waits until a chat has an answer and returns the chat.
local function wait_answer()
  return t.wait("the answer", function()
    local chat = require("ollm.chat").current()
    return chat and chat.turn == nil and chat:last_role() == "assistant" and chat
  end)
end

return {
  { "sessions picker opens the chosen session", function()
    t.new_home()
    local id = record("The lexer", "How do I split words?", "At spaces.")
    record("Another one", "Hi")
    local asked = t.answer("The lexer")
    vim.cmd("Ollm sessions")
    chosen(asked)
    t.equal(2, #asked.lines)
    t.contains(asked.lines, "The lexer · 2 messages · now")
    local chat = wait_open(id)
    t.contains(t.shown(chat), "At spaces.")
    -- Words of the title restrict the list.
    asked = t.answer("Another")
    vim.cmd("Ollm sessions another")
    chosen(asked)
    t.equal(1, #asked.lines)
    vim.cmd("Ollm sessions nothing-like-this")
    t.wait_notice("no sessions with these words")
  end },
  { "recall picker opens the session at the message", function()
    t.new_home()
    local id = record("Ports", "Which port does staging use?", "Staging uses port 48213.", "Thanks", "Welcome.")
    record("Other", "Tell me about bananas", "They are yellow.")
    t.wait("the index has the messages", function()
      return not t.call("context.recall", { query = "staging", scope = "all" }).behind
    end)
    local asked = t.answer("Which port")
    vim.cmd("Ollm recall which port does staging use?")
    chosen(asked)
    t.contains(asked.lines[1], "Ports · now · ")
    local chat = wait_open(id)
    local window = vim.fn.win_findbuf(chat.view.buffer)[1]
    t.wait("the cursor is at the message", function()
      local line = api.nvim_win_get_cursor(window)[1]
      local text = api.nvim_buf_get_lines(chat.view.buffer, line - 1, line, false)[1]
      return text:find("^Assistant  #2 ") or text:find("^You  #1 ")
    end)
    vim.cmd("Ollm recall zyzzyva")
    t.wait_notice("nothing was said about this")
  end },
  { "chat opens the current session of the project, or one by its id", function()
    t.new_home()
    local id = record("Mine", "hello")
    t.call("session.setCurrent", { projectPath = t.project, sessionId = id })
    vim.cmd("Ollm chat")
    wait_open(id)
    t.reset()
    t.new_home()
    id = record("By id", "hello")
    vim.cmd("Ollm chat " .. id:sub(-8))
    wait_open(id)
    vim.cmd("Ollm chat 0000beef")
    t.wait_notice("there is no session 0000beef")
    vim.cmd("Ollm chat nonsense")
    t.wait_notice("nonsense is not an id")
  end },
  { "chat in a subdirectory finds the session of the project above it", function()
    t.new_home()
    local id = record("Above", "hello")
    t.call("session.setCurrent", { projectPath = t.project, sessionId = id })
    vim.fn.mkdir(t.project .. "/src/deep", "p")
    vim.cmd.cd(t.project .. "/src/deep")
    vim.cmd("Ollm")
    wait_open(id)
  end },
  { "selection is sent with its path, its lines and its language", function()
    t.new_home()
    require("ollm").setup({ layout = "vertical" })
    edit("words.py", { "a = 1", "fence = [", "````", "]", "print(a)" })
    local window = api.nvim_get_current_win()
    vim.cmd("2,4Ollm send what is this?")
    local chat = wait_answer()
    t.equal("what is this?\n\nwords.py, lines 2-4:\n`````python\nfence = [\n````\n]\n`````", asked_message(chat))
    -- The chat opens beside the file, and the cursor stays in the file.
    t.equal(window, api.nvim_get_current_win())
    t.equal(3, #api.nvim_tabpage_list_wins(0))
    -- A visual selection is a range.
    api.nvim_win_set_cursor(0, { 5, 0 })
    t.type("V:Ollm send explain<CR>")
    t.wait("the second message", function()
      return chat.turn == nil and asked_message(chat):find("words.py, line 5:\n```python\nprint(a)\n```", 1, true)
    end)
  end },
  { "whole file is sent, and the question is asked for", function()
    t.new_home()
    edit("bytes.txt", { "caf\233", "ünï" })
    vim.cmd("edit ++enc=utf-8 ++bad=keep")
    local prompt
    vim.ui.input = function(options, callback)
      prompt = options.prompt
      callback("read it")
    end
    vim.cmd("Ollm send")
    local chat = wait_answer()
    t.equal("Question about bytes.txt: ", prompt)
    t.equal("read it\n\nbytes.txt, the whole file, 2 lines:\n```text\ncaf\239\191\189\nünï\n```", asked_message(chat))
    vim.ui.input = function(_, callback)
      callback(nil)
    end
    vim.cmd("Ollm send")
    t.equal(nil, chat.turn)
  end },
  { "in a chat, send sends what the prompt has", function()
    local chat = t.new_chat()
    api.nvim_buf_set_lines(chat.view.prompt, 0, -1, false, { "the rest" })
    vim.cmd("Ollm send First words,")
    t.wait("the message", function()
      return chat.turn == nil and asked_message(chat) == "First words,\n\nthe rest"
    end)
  end },
  { "chat says that the model reads only a part of a long file", function()
    t.new_home()
    edit("long.txt", vim.fn["repeat"]({ "some words of a long line of this file" }, 2000))
    vim.cmd("Ollm send summarize")
    local chat = wait_answer()
    t.contains(t.shown(chat), "the model reads ")
    t.contains(t.shown(chat), " tokens of #1, because the record does not fit")
  end },
  { "file that is too large is refused", function()
    edit("large.txt", vim.fn["repeat"]({ ("x"):rep(1000) }, 9000))
    vim.cmd("Ollm send all of it")
    t.wait_notice("at most 8 MiB can be sent")
  end },
  { "context, goals and remembered texts are shown and changed", function()
    t.new_home()
    local chat = t.new_chat()
    vim.cmd("Ollm goal create Port the parser")
    t.wait_notice("the goal is: Port the parser")
    vim.cmd("Ollm remember The staging port is 48213.")
    t.wait_notice("remembered in this session")
    vim.cmd("Ollm remember --global Answer briefly.")
    t.wait_notice("remembered in all sessions")
    vim.cmd("Ollm remember --project Never touch legacy/.")
    t.wait_notice("remembered in this project")
    local entries = t.ctl("context", "entries", "--session", chat:id(), "--json")
    for _, part in ipairs({ "The staging port is 48213.", "Answer briefly.", "Never touch legacy/." }) do
      t.contains(entries, part)
    end
    -- The key is that of `ollmctl remember`: the same text is one entry.
    t.contains(t.ctl("remember", "--session", chat:id(), "The staging port is 48213."), "was remembered already")
    vim.cmd("Ollm goal")
    t.wait("the goals", function()
      return api.nvim_win_get_config(0).relative == "editor"
    end)
    t.contains(api.nvim_buf_get_lines(0, 0, -1, false), "active  Port the parser")
    t.type("q")
    vim.cmd("Ollm context")
    t.wait("the context", function()
      return api.nvim_win_get_config(0).relative == "editor"
    end)
    local lines = api.nvim_buf_get_lines(0, 0, -1, false)
    t.contains(lines, "remembered texts")
    t.contains(lines, "window")
    t.type("<Esc>")
    vim.cmd("Ollm goal done")
    t.wait_notice("completed: Port the parser")
    vim.cmd("Ollm context compact")
    t.wait_notice("nothing was compacted")
    vim.cmd("Ollm goal nonsense")
    t.wait_notice("goals are shown, created or done")
  end },
  { "facts are listed, and one is forgotten", function()
    t.new_home()
    local id = record("Facts", "The staging port is 48213.", "Good.")
    vim.cmd("Ollm chat " .. id)
    wait_open(id)
    local asked = t.answer("48213", "forget it")
    vim.cmd("Ollm facts")
    chosen(asked)
    t.wait_notice("forgotten; the message stays")
    vim.cmd("Ollm facts")
    t.wait_notice("no facts yet")
  end },
  { "model is chosen from the list, or by its name", function()
    t.new_home()
    local chat = t.new_chat()
    local asked = t.answer("parrot")
    vim.cmd("Ollm model")
    chosen(asked)
    t.contains(asked.lines, "echo:latest · 7B · 8,192 tokens")
    t.wait_notice("the model is parrot:latest")
    t.turn(chat, "who are you?")
    t.contains(t.shown(chat), "parrot:latest  #")
    vim.cmd("Ollm model echo")
    t.wait_notice("the model is echo")
    t.turn(chat, "and now?")
    t.contains(t.shown(chat), "echo  #")
  end },
  { "tree moves to an earlier message, and undo takes it back", function()
    t.new_home()
    local chat = t.new_chat()
    t.turn(chat, "first")
    t.turn(chat, "second")
    local asked = t.answer("#3 assistant")
    vim.cmd("Ollm tree")
    chosen(asked)
    t.wait_notice("the conversation goes on behind #")
    t.wait("the second turn is gone", function()
      return not t.shown(chat):find("You said: second", 1, true)
    end)
    vim.cmd("Ollm undo")
    t.wait("the second turn is back", function()
      return t.shown(chat):find("You said: second", 1, true)
    end)
  end },
  { "subcommands and their arguments are completed", function()
    t.new_home()
    local id = record("Complete me", "hi")
    local function complete(line)
      return vim.fn.getcompletion(line, "cmdline")
    end
    t.equal({ "recall", "redo", "remember", "retry" }, complete("Ollm re"))
    t.equal({ "compact" }, complete("Ollm context "))
    t.equal({ "--global", "--project" }, complete("Ollm remember --"))
    t.contains(complete("Ollm model "), "parrot:latest")
    local ids = complete("Ollm chat ")
    t.equal("new", ids[1])
    assert(vim.endswith(id, ids[2]:gsub("-", "")) or vim.endswith(id, ids[2]), vim.inspect(ids))
    t.equal({}, complete("Ollm undo "))
    t.equal({}, complete("Ollm goal create x"))
  end },
  { "unknown subcommand and options are named, with what there is", function()
    vim.cmd("Ollm dance")
    t.wait_notice("there is no :Ollm dance; there are chat, send")
    require("ollm").setup({ colour = "red" })
    t.wait_notice("there is no option colour; the options are home, layout")
    require("ollm").setup({ layout = "sideways" })
    t.wait_notice("the option layout is one of auto")
    vim.cmd("Ollm undo many")
    t.wait_notice("the number of operations is 1 to 1000")
  end },
  { "command without a session says how to begin one", function()
    t.new_home()
    vim.cmd("Ollm context")
    t.wait_notice("this directory has no current session")
    t.contains(t.noticed(), "try: :Ollm chat")
  end },
  { "older Neovim gets one clear message and no command", function()
    local has = vim.fn.has
    vim.fn.has = function(feature)
      return feature == "nvim-0.10" and 0 or has(feature)
    end
    local echoed = {}
    local echo = api.nvim_echo
    api.nvim_echo = function(chunks)
      echoed[#echoed + 1] = chunks[1][1]
    end
    api.nvim_del_user_command("Ollm")
    package.loaded.ollm, vim.g.loaded_ollm = nil, nil
    vim.cmd.runtime("plugin/ollm.lua")
    vim.cmd.runtime("plugin/ollm.lua")
    vim.fn.has, api.nvim_echo = has, echo
    t.equal(1, #echoed)
    t.contains(echoed[1], "ollm needs Neovim 0.10 or newer, and this is 0.")
    t.equal(0, vim.fn.exists(":Ollm"))
  end },
  { "checkhealth finds everything and reports no error", function()
    t.new_home()
    vim.cmd("checkhealth ollm")
    local lines = table.concat(api.nvim_buf_get_lines(0, 0, -1, false), "\n")
    for _, part in ipairs({ "Neovim 0.", "ollmctl 0.", "ollmd: /", "socket: /", "protocol 1", "models: echo:latest" }) do
      t.contains(lines, part)
    end
    assert(not lines:find("ERROR", 1, true), lines)
    -- A missing program is an error with advice.
    require("ollm").setup({ ollmctl = "/nowhere/ollmctl" })
    vim.cmd("checkhealth ollm")
    lines = table.concat(api.nvim_buf_get_lines(0, 0, -1, false), "\n")
    t.contains(lines, "ollmctl was not found: /nowhere/ollmctl")
  end },
  { "documents list every subcommand and option, and no other", function()
    local function read(name)
      return table.concat(vim.fn.readfile(vim.env.OLLM_PLUGIN .. "/" .. name), "\n")
    end
    local help, readme = read("doc/ollm.txt"), read("README.md")
    for _, entry in ipairs(require("ollm.commands").LIST) do
      t.contains(help, "*:Ollm-" .. entry.name .. "*")
      t.contains(help, "Ollm " .. entry.form)
      t.contains(readme, ":Ollm " .. entry.name)
    end
    for _, document in ipairs({ help, readme }) do
      for name in document:gmatch(":Ollm (%l+)") do
        local is_known = vim.iter(require("ollm.commands").LIST):any(function(entry)
          return entry.name == name
        end)
        assert(is_known, ":Ollm " .. name .. " does not exist")
      end
    end
    for _, name in ipairs({ "ollmctl", "home", "socket", "model", "layout", "prompt_height" }) do
      t.contains(help, "*ollm-option-" .. name:gsub("_", "-") .. "*")
    end
  end },
  { "keys of the help are those of the buffers", function()
    local help = table.concat(vim.fn.readfile(vim.env.OLLM_PLUGIN .. "/doc/ollm.txt"), "\n")
    local chat = t.new_chat()
    for _, buffer in ipairs({ chat.view.buffer, chat.view.prompt }) do
      for _, mode in ipairs({ "n", "i" }) do
        for _, map in ipairs(api.nvim_buf_get_keymap(buffer, mode)) do
          if (map.desc or ""):find("^ollm") then
            local key = map.lhs:gsub("<C%-(%a)>", function(letter)
              return "CTRL-" .. letter:upper()
            end)
            t.contains(help, key)
          end
        end
      end
    end
  end },
  { "tags of the help are made without a complaint", function()
    local directory = vim.env.OLLM_SCRATCH .. "/doc"
    vim.fn.mkdir(directory, "p")
    vim.fn.writefile(vim.fn.readfile(vim.env.OLLM_PLUGIN .. "/doc/ollm.txt"), directory .. "/ollm.txt")
    vim.v.errmsg = ""
    vim.cmd.helptags(directory)
    t.equal("", vim.v.errmsg)
    assert(#vim.fn.readfile(directory .. "/tags") > 20)
    for _, line in ipairs(vim.fn.readfile(directory .. "/ollm.txt")) do
      assert(vim.fn.strdisplaywidth(line) <= 78, line)
    end
  end },
}
